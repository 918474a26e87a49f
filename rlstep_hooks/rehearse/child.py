"""What is changed in the child process of a rehearsal, at the import of each module; one reason each."""

from __future__ import annotations

import os
import site
import sysconfig
from importlib.machinery import SourceFileLoader
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import msgspec
import wrapt

from rlstep_hooks.rehearse.adapters import stand_in_for_adapters
from rlstep_hooks.rehearse.aside import save_aside
from rlstep_hooks.rehearse.framework import framework
from rlstep_hooks.rehearse.guard import is_outside
from rlstep_hooks.rehearse.messages import VARIABLE, CannotRehearseError, say, settings

if TYPE_CHECKING:
    from collections.abc import Callable

_LOADING = ("revision", "device_map", "attn_implementation", "quantization_config", "load_in_4bit", "load_in_8bit", "dtype",
            "torch_dtype", "max_memory", "low_cpu_mem_usage", "use_flash_attention_2", "trust_remote_code", "token", "cache_dir",
            "use_kernels", "subfolder", "code_revision")  # fmt: skip
"""Arguments of `from_pretrained` about the real weights and devices."""


def register() -> None:
    """Register what this process changes; nothing where no rehearsal was asked for."""
    if not os.environ.get(VARIABLE):
        return
    _guard_bytecode()
    hooks: dict[str, Callable[[Any], None]] = {
        # The tiny model, tokenizer and configuration, wherever the real ones are loaded.
        "transformers.modeling_utils": lambda module: _redirect_and_save(module.PreTrainedModel, loads=True),
        "transformers.models.auto.modeling_auto": _redirect_auto_models,
        "transformers.models.auto.configuration_auto": lambda module: _redirect(module.AutoConfig),
        "transformers.models.auto.tokenization_auto": lambda module: _redirect(module.AutoTokenizer),
        "transformers.models.auto.processing_auto": lambda module: _redirect(module.AutoProcessor),
        "transformers.tokenization_utils_base": lambda module: _redirect_and_save(module.PreTrainedTokenizerBase),
        "transformers.generation.configuration_utils": lambda module: _redirect(module.GenerationConfig),
        "transformers.configuration_utils": _redirect_config,
        # Rows, where a set is on no disk of this machine.
        "datasets.load": _replace_load_dataset,
        "datasets.arrow_dataset": _replace_select,
        # What `map` makes of the user's rows goes to the temporary folder, not beside them.
        "datasets.fingerprint": lambda module: module.disable_caching(),
        # No login, nothing uploaded.
        "huggingface_hub._login": lambda module: _silence(module, "login", "notebook_login", "interpreter_login"),
        "huggingface_hub.hf_api": lambda module: _silence(
            module.HfApi, "upload_folder", "upload_file", "create_repo", "create_commit"
        ),
        "transformers.utils.hub": lambda module: _silence(module.PushToHubMixin, "push_to_hub"),
        # A script that moves its model to a GPU itself.
        "torch.nn.modules.module": _stay_on_cpu,
        # Adapters are models too; their files are not opened by Python.
        "peft.peft_model": stand_in_for_adapters,
        # It opens files by itself, not by Python's `open`.
        "torch.serialization": _save_aside,
    }
    for module, hook in hooks.items():
        wrapt.register_post_import_hook(_once(hook), module)
    for module, place in framework().hooks.items():
        wrapt.register_post_import_hook(_once(_named(place)), module)


def _named(place: str) -> Callable[[Any], None]:
    """The function that "module:function" names, imported when it is called."""
    return lambda imported: resolve_name(place)(imported)


def _redirect_and_save(owner: Any, *, loads: bool = False) -> None:
    _redirect(owner, loads=loads)
    save_aside(owner, "save_pretrained", "save_directory")


def _once(hook: Callable[[Any], None]) -> Callable[[Any], None]:
    """A hook whose failure is said: a release that is built differently."""

    def contained(module: Any) -> None:
        try:
            hook(module)
        except Exception as error:  # noqa: BLE001 - the import must not fail, and the parent says why
            say(
                "release",
                f"{module.__name__} is not built as known: {type(error).__name__}: {error}",
                level="impossible",
            )

    return contained


def _redirect(owner: Any, *, loads: bool = False) -> None:
    """Have a class load the tiny model's folder in the place of the real name."""

    def around(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        from rlstep_hooks.rehearse.models import place_of

        key = next((key for key in ("pretrained_model_name_or_path", "pretrained_model_name") if key in kwargs), None)
        name = kwargs[key] if key else (args[0] if args else None)
        if not isinstance(name, str | Path):
            return wrapped(*args, **kwargs)
        try:
            place = place_of(str(name))
        except CannotRehearseError as error:
            say("model", str(error), level="impossible")
            raise
        if place == str(name) and Path(place).is_dir() and loads is False:
            return wrapped(*args, **kwargs)
        left = _LOADING if loads else ("revision", "token", "cache_dir", "code_revision")
        kwargs = {name: value for name, value in kwargs.items() if name not in left}
        if key:
            return wrapped(*args, **{**kwargs, key: place})
        return wrapped(place, *args[1:], **kwargs)

    wrapt.wrap_function_wrapper(owner, "from_pretrained", around)


def _redirect_auto_models(module: Any) -> None:
    """Each class has a copy of the method (`auto_class_update`), made before this is called."""
    for each in list(vars(module).values()):
        if isinstance(each, type) and "from_pretrained" in vars(each):
            _redirect(each, loads=True)


def _redirect_config(module: Any) -> None:
    _redirect(getattr(module, "PreTrainedConfig", None) or module.PretrainedConfig)


def _replace_load_dataset(module: Any) -> None:
    wrapt.wrap_function_wrapper(module, "load_dataset", _load_dataset)


def _load_dataset(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    from rlstep_hooks.rehearse.data import load

    return load(wrapped, instance, args, kwargs)


def _replace_select(module: Any) -> None:
    wrapt.wrap_function_wrapper(module.Dataset, "select", _select)


def _select(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    from rlstep_hooks.rehearse.data import select

    return select(wrapped, instance, args, kwargs)


def _silence(owner: Any, *names: str) -> None:
    for name in names:
        if hasattr(owner, name):
            wrapt.wrap_function_wrapper(owner, name, lambda wrapped, instance, args, kwargs: None)


def _stay_on_cpu(module: Any) -> None:
    if settings().cuda:
        return

    def to(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        device = str(args[0]) if args else str(kwargs.get("device", ""))
        return instance if device.startswith("cuda") or device.isdigit() else wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(module.Module, "to", to)
    wrapt.wrap_function_wrapper(module.Module, "cuda", lambda wrapped, instance, args, kwargs: instance)


def _save_aside(module: Any) -> None:
    """Have `torch.save` write a path outside into a copy, as `open` does."""

    def around(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        given = kwargs.get("f", args[1] if len(args) > 1 else None)
        if not isinstance(given, str | os.PathLike) or not is_outside(given, msgspec.structs.asdict(settings())):
            return wrapped(*args, **kwargs)
        values = dict(zip(("obj", "f", "pickle_module", "pickle_protocol"), args, strict=False)) | kwargs
        with open(given, "wb") as file:
            return wrapped(**{**values, "f": file})

    wrapt.wrap_function_wrapper(module, "save", around)


def _guard_bytecode() -> None:
    """Keep bytecode of installed packages, as Python does, and none of the user's modules: theirs would lie beside their files.

    Without any, each of a dozen processes compiles torch and its framework anew where the installation has no bytecode yet, as
    uv leaves it: verl took twice as long to start.
    """
    installed = {Path(path).resolve() for path in (*site.getsitepackages(), sysconfig.get_path("stdlib"))}

    def keep(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        path = Path(os.path.realpath(kwargs.get("path", args[0] if args else "")))
        return wrapped(*args, **kwargs) if any(folder in path.parents for folder in installed) else None

    wrapt.wrap_function_wrapper(SourceFileLoader, "set_data", keep)
