"""What the files of a checkpoint have of what a process holds, and how it is told."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file

from rlstep_hooks.observe.saved_files import moments_in, read_file, weights_in, weights_in_files  # noqa: E402
from rlstep_hooks.observe.saved_parts import SavedParts  # noqa: E402
from rlstep_hooks.record.events import SAVED, FactsRead  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


class Model(torch.nn.Module):
    """Two layers, of which the second is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 40), torch.nn.Linear(40, 2)
        self.second.requires_grad_(requires_grad=False)


def copied(model: Model) -> dict[str, Any]:
    return {name: of.clone() for name, of in model.state_dict().items()}


def test_the_weights_of_a_file() -> None:
    model = Model()
    assert weights_in(copied(model), model) == "as saved"
    assert weights_in({f"_orig_mod.{name}": of for name, of in copied(model).items()}, model) == "as saved"
    assert weights_in({"other": torch.zeros(3)}, model) == "unknown", "the file has none of its tensors"
    assert weights_in({}, model) == "unknown"


def test_weights_that_were_rounded_or_left_out_are_others() -> None:
    model = Model()
    rounded = {name: of.bfloat16().float() for name, of in copied(model).items()}
    assert weights_in(rounded, model) == "others"
    lacking = copied(model)
    del lacking["first.bias"]
    assert weights_in(lacking, model) == "others"
    of_frozen = copied(model)
    del of_frozen["second.weight"]
    assert weights_in(of_frozen, model) == "as saved", "adapters are saved without the layers that are frozen"
    other_size = copied(model) | {"first.bias": torch.zeros(41)}
    assert weights_in(other_size, model) == "others"


def test_safetensors_are_read_in_part(tmp_path: Path) -> None:
    model = Model()
    assert weights_in_files(tmp_path, model) == "unknown"
    save_file(copied(model), tmp_path / "model.safetensors")
    assert weights_in_files(tmp_path, model) == "as saved"
    with torch.no_grad():
        model.first.bias += 1
    assert weights_in_files(tmp_path, model) == "others"


def test_moments(tmp_path: Path) -> None:
    model = Model()
    optimizer = torch.optim.AdamW([of for of in model.parameters() if of.requires_grad])
    model.first(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    read = read_file(tmp_path / "optimizer.pt", nullcontext)
    assert read is not None
    assert moments_in(read, optimizer) == "as saved"
    optimizer.step()
    assert moments_in(read, optimizer) == "others"
    optimizer.state.clear()
    assert moments_in(read, optimizer) == "others", "none are held"
    assert moments_in({"param_groups": [{"params": [0]}], "state": {}}, optimizer) == "unknown"
    torch.save(Model(), tmp_path / "pickled.pt")
    assert read_file(tmp_path / "pickled.pt", nullcontext) is None, "nothing but tensors is read"


class Recorder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def now(self) -> int:
        return 0

    def emit(self, event: Any) -> None:
        self.events.append(event)


@pytest.mark.parametrize("role", ["policy", "critic"])
def test_parts_that_were_others_are_told(role: Any) -> None:
    recorder = Recorder()
    parts = SavedParts(recorder, role)  # type: ignore[arg-type]
    parts.tell({"weights": "as saved", "moments": "unknown"}, updates=2)
    parts.tell({"weights": "others", "moments": "as saved"})
    first, second = recorder.events
    assert isinstance(first, FactsRead)
    assert first.facts == {SAVED[role]: {"compared": 1, "wrong": []}}
    assert second.facts == {SAVED[role]: {"compared": 3, "wrong": [(None, "weights")]}}
