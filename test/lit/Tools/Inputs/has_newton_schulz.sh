#!/bin/sh
# Interesting (status 1): the file has a Newton-Schulz iteration.
! grep -q kaon.newton_schulz "$1"
