"""How long compiling takes grows with what is written, not with how often values are used."""

from __future__ import annotations

import time

import pytest

_C = pytest.importorskip("kaon._C")

UPDATE = """
func.func @f(%w: tensor<4x6xf32> {{kaon.role = #kaon.role<param>}},
             %g: tensor<4x6xf32> {{kaon.role = #kaon.role<grad>}},
             %step: i64 {{kaon.role = #kaon.role<step>}}) -> tensor<4x6xf32> attributes {{kaon.update}} {{
  %y0 = math.absf %g : tensor<4x6xf32>
  {body}
  %n = kaon.norm %g along all : tensor<4x6xf32> -> tensor<1x1xf32>
  %k = kaon.broadcast %n : tensor<1x1xf32> to tensor<4x6xf32>
  %u = arith.mulf %y40, %k : tensor<4x6xf32>
  %w1 = arith.subf %w, %u : tensor<4x6xf32>
  return %w1 : tensor<4x6xf32>
}}
kaon.program @step {{ kaon.parameter @f "w" scalars 0 phase 0 }}
"""
T = "tensor<4x6xf32>"
STATEMENTS = {
    "doubling": f"%y{{next}} = arith.addf %y{{i}}, %y{{i}} : {T}",
    # y * (1.5 - 0.5 * y * y): three uses of the value before.
    "newton": f"%h{{i}} = arith.mulf %y{{i}}, %y{{i}} : {T}\n"
    f"%c{{i}} = arith.constant dense<0.5> : {T}\n"
    f"%s{{i}} = arith.mulf %c{{i}}, %h{{i}} : {T}\n"
    f"%d{{i}} = arith.constant dense<1.5> : {T}\n"
    f"%t{{i}} = arith.subf %d{{i}}, %s{{i}} : {T}\n"
    f"%y{{next}} = arith.mulf %y{{i}}, %t{{i}} : {T}",
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_forty_elementwise_statements_used_one_stage_later(statement: str) -> None:
    body = "\n".join(STATEMENTS[statement].format(i=i, next=i + 1) for i in range(40))
    module = _C.parse(UPDATE.format(body=body))
    start = time.process_time()
    module.run_pipeline("kaon-cpu-pipeline")
    assert time.process_time() - start < 1.0
