"""torch's own optimizer inputs and error inputs (`optim_db`), tried on Kaon's Muon and AdamW.

torch's result is the right value. Deliberate differences, each tested here:

* torch's Muon runs Newton-Schulz in bfloat16; Kaon in the parameter's precision. Its helper is therefore patched to do
  the same, line by line.
* torch's Muon takes `eps=1e-7` as a floor of the norm; Kaon's default is 0. Runs that compare set torch's.
* torch's Muon refuses parameters that are not matrices; Kaon sends them to AdamW, and refuses them where the rules send
  all to Muon.
* torch's Muon refuses complex parameters at the first step, Kaon at construction. torch's AdamW takes them as pairs of
  real ones; Kaon's refuses them.
* Given a float32 tensor as `lr`, torch computes `1 - lr * weight_decay` in float32, whatever the parameter; Kaon
  computes with scalars in float64. Runs that compare in float64 get a float64 tensor.
* Tensors that do not require gradients are frozen for Kaon; torch updates them if they have a `.grad`.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import Any

import pytest
import torch
from kaon.optim import AdamW, Muon, matrix_rules
from optim_tools import parameters, relative_error, set_gradients
from torch import nn

pytest.importorskip("expecttest", reason="torch's test utilities need it")
common = pytest.importorskip("torch.testing._internal.common_optimizers", reason="this torch has no optimizer inputs")

INFOS = {info.optim_cls.__name__: info for info in common.optim_db}
KAON = {"Muon": Muon, "AdamW": AdamW}
TORCH = {"Muon": torch.optim.Muon, "AdamW": torch.optim.AdamW}
SHAPES = {"Muon": [(6, 10), (10, 6), (8, 8), (1, 5), (5, 1)], "AdamW": [(6, 10), (7,), (), (2, 3, 4)]}


def newton_schulz_in_own_precision(grad: torch.Tensor, coefficients: Any, steps: int, eps: float) -> torch.Tensor:
    """torch.optim._muon._zeropower_via_newtonschulz without the conversion to bfloat16."""
    a, b, c = coefficients
    x = grad.clone()
    if grad.size(0) > grad.size(1):
        x = x.T
    x.div_(x.norm().clamp(min=eps))
    for _ in range(steps):
        gram = x @ x.T
        update = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.addmm(x, update, x, beta=a)
    return x.T if grad.size(0) > grad.size(1) else x


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("torch.optim._muon")
    monkeypatch.setattr(module, "_zeropower_via_newtonschulz", newton_schulz_in_own_precision)


def inputs() -> list[Any]:
    return [
        pytest.param(name, item.kwargs, id=f"{name}-{item.desc}")
        for name in KAON
        for item in INFOS[name].optim_inputs_func(device="cpu", dtype=torch.float32)
    ]


def test_the_inputs_are_there() -> None:
    assert len(inputs()) >= 12


@pytest.mark.parametrize(("name", "kwargs"), inputs())
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_equals_torch(name: str, kwargs: dict[str, Any], dtype: torch.dtype) -> None:
    ours, theirs = parameters(SHAPES[name], dtype), parameters(SHAPES[name], dtype)
    kwargs = {key: value.to(dtype) if isinstance(value, torch.Tensor) else value for key, value in kwargs.items()}
    kaon_kwargs = {"eps": 1e-7, **kwargs} if name == "Muon" else kwargs
    kaon_optimizer, torch_optimizer = KAON[name](ours, **kaon_kwargs), TORCH[name](theirs, **kwargs)
    tolerance = 1e-11 if dtype == torch.float64 else 1e-4 if name == "Muon" else 1e-6
    for step in range(5):
        set_gradients(ours, step)
        set_gradients(theirs, step)
        kaon_optimizer.step()
        torch_optimizer.step()
    for p, q in zip(ours, theirs, strict=True):
        assert relative_error(p, q) < tolerance
        for state, value in kaon_optimizer.state[p].items():
            assert relative_error(value, torch_optimizer.state[q][state]) < tolerance
    saved, wanted = kaon_optimizer.state_dict(), torch_optimizer.state_dict()
    assert saved["param_groups"][0]["lr"] == wanted["param_groups"][0]["lr"]
    assert saved["state"].keys() == wanted["state"].keys()


@pytest.mark.parametrize(("name", "kwargs"), inputs())
def test_trains_as_torch_does_under_its_schedulers(name: str, kwargs: dict[str, Any]) -> None:
    def train(optimizer_class: Any, make_schedulers: Any, **more: Any) -> list[float]:
        params = parameters([(8, 5), (8, 1)])
        (x,) = (p.detach() for p in parameters([(5, 16)], seed=1))
        # torch's schedulers write into a tensor that is given as `lr`.
        optimizer = optimizer_class(params, **{**more, **copy.deepcopy(kwargs)})
        schedulers = [make(optimizer) for make in make_schedulers]
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = (params[0] @ x + params[1]).square().mean()
            (-loss if kwargs.get("maximize") else loss).backward()
            optimizer.step()
            losses.append(loss.item())
            for scheduler in schedulers:
                if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                    scheduler.step(loss.detach())
                else:
                    scheduler.step()
        return losses

    more = {"eps": 1e-7} if name == "Muon" else {}
    for make_schedulers in INFOS[name].scheduler_inputs:
        ours, theirs = train(KAON[name], make_schedulers, **more), train(TORCH[name], make_schedulers)
        assert ours == pytest.approx(theirs, rel=1e-4)
        if not kwargs.get("maximize"):
            assert ours[-1] < ours[0]


def error_inputs() -> list[Any]:
    return [
        pytest.param(name, item, id=f"{name}-{item.optimizer_error_input.desc}")
        for name in KAON
        for item in INFOS[name].optim_error_inputs_func(device="cpu", dtype=torch.float32)
    ]


@pytest.mark.parametrize(("name", "item"), error_inputs())
def test_refuses_what_torch_refuses(name: str, item: Any) -> None:
    given = item.optimizer_error_input
    params = given.params if given.params is not None else parameters([(1, 1)])
    kwargs = dict(given.kwargs)
    if given.desc == "only support 2D parameters":
        with pytest.warns(UserWarning, match="all 1 go to AdamW"):
            Muon(params, **kwargs)
        kwargs["rules"] = matrix_rules()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        # Complex parameters: torch raises in step, Kaon in the constructor.
        with pytest.raises(item.error_type, match=item.error_regex):
            optimizer = KAON[name](params, **kwargs)
            optimizer.step()
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("error", UserWarning)
        TORCH[name](params, **given.kwargs).step()
        pytest.fail("torch does not refuse this any more")


def test_adamw_refuses_complex_parameters() -> None:
    with pytest.raises(
        RuntimeError, match=r"AdamW does not support complex parameters, but parameter 0 of shape \(3,\)"
    ):
        AdamW([nn.Parameter(torch.zeros(3, dtype=torch.complex64))])


def test_tensors_without_requires_grad_are_frozen() -> None:
    tensor = torch.ones(2, 3)
    tensor.grad = torch.ones(2, 3)
    optimizer = Muon([tensor], lr=0.1)
    optimizer.step()
    assert torch.equal(tensor, torch.ones(2, 3))
    theirs = torch.optim.Muon([tensor], lr=0.1)
    theirs.step()
    assert not torch.equal(tensor, torch.ones(2, 3))


def test_duplicate_parameters_are_updated_once() -> None:
    """torch warns about them and updates them twice per step."""
    twice, once = parameters([(4, 6)]), parameters([(4, 6)])
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = Muon([twice[0], twice[0]], lr=0.1)
    other = Muon(once, lr=0.1)
    set_gradients(twice, 0)
    set_gradients(once, 0)
    optimizer.step()
    other.step()
    assert torch.equal(twice[0], once[0])


def test_positional_arguments_are_torchs() -> None:
    arguments = (0.01, 0.2, 0.9, False, (3.4, -4.7, 2.0), 1e-6, 4, "match_rms_adamw")
    ours, theirs = Muon(parameters([(4, 6)]), *arguments), torch.optim.Muon(parameters([(4, 6)]), *arguments)
    assert {key: ours.defaults[key] for key in theirs.defaults} == theirs.defaults
    adamw = (0.01, (0.8, 0.9), 1e-6, 0.1, True)
    ours_adamw, theirs_adamw = AdamW(parameters([(4,)]), *adamw), torch.optim.AdamW(parameters([(4,)]), *adamw)
    shared = ours_adamw.defaults.keys() & theirs_adamw.defaults.keys()
    assert {key: ours_adamw.defaults[key] for key in shared} == {key: theirs_adamw.defaults[key] for key in shared}
    defaults, torch_defaults = Muon(parameters([(4, 6)])).defaults, torch.optim.Muon(parameters([(4, 6)])).defaults
    assert {k: defaults[k] for k in torch_defaults if k != "eps"} == {
        k: v for k, v in torch_defaults.items() if k != "eps"
    }
