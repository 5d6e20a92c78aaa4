"""Classes of other libraries that classes of the core derive from: which attributes they bring.

The standard library is asked itself. Of torch and pydantic, which the doctor does without, the attributes are written
down here (torch 2.11 to 2.13, pydantic 2). A base that is neither is unknown, and nothing is said of such a class.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import NamedTuple

from vllm_pairs.doctor.words import words

_ASKED = words(
    "abc argparse ast builtins collections collections.abc concurrent.futures contextlib contextvars dataclasses enum "
    "functools io json logging multiprocessing pathlib queue string threading types typing weakref"
)
_MODULE = words(
    "T_destination add_module apply bfloat16 bool buffers byte call_super_init char children compile cpu cuda "
    "double dump_patches eval extra_repr float forward get_buffer get_extra_state get_parameter get_submodule "
    "half int ipu long load_state_dict modules mtia named_buffers named_children named_modules "
    "named_parameters parameters register_buffer register_backward_hook register_forward_hook "
    "register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook "
    "register_load_state_dict_post_hook register_load_state_dict_pre_hook register_module register_parameter "
    "register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule "
    "share_memory short state_dict to to_empty train training type xpu zero_grad _apply _backward_hooks "
    "_buffers _call_impl _forward_hooks _forward_pre_hooks _get_name _load_from_state_dict _modules "
    "_named_members _non_persistent_buffers_set _parameters _register_load_state_dict_pre_hook "
    "_register_state_dict_hook _replicate_for_data_parallel _save_to_state_dict _state_dict_hooks "
    "_compiled_call_impl _slow_forward _wrapped_call_impl _version"
)
_MODEL = words(
    "model_config model_fields model_computed_fields model_construct model_copy model_dump model_dump_json model_extra "
    "model_fields_set model_json_schema model_parametrized_name model_post_init model_rebuild model_validate "
    "model_validate_json model_validate_strings construct copy dict json parse_file parse_obj parse_raw schema "
    "schema_json update_forward_refs validate from_orm"
)
_KNOWN = {
    "torch.nn.Module": _MODULE,
    "torch.nn.modules.module.Module": _MODULE,
    "pydantic.BaseModel": _MODEL,
    "pydantic.main.BaseModel": _MODEL,
    "typing.NamedTuple": frozenset(dir(NamedTuple("_Example", [("field", int)]))),
    "typing_extensions.Protocol": frozenset[str](),
    "typing_extensions.TypedDict": frozenset(dir(dict)),
}
# Any attribute may be asked of an nn.Module: parameters, buffers and submodules answer through its __getattr__. An
# object that meets a Protocol has attributes of its own.
DYNAMIC = frozenset(
    {"torch.nn.Module", "torch.nn.modules.module.Module", "typing.Protocol", "typing_extensions.Protocol"}
)


@cache
def external_attributes(path: str) -> frozenset[str] | None:
    """The attributes that a class outside both trees brings, by its dotted path; None where it is not known."""
    if path in _KNOWN:
        return _KNOWN[path]
    module, _, name = path.rpartition(".")
    module = module or "builtins"
    if module not in _ASKED:
        return None
    found = getattr(importlib.import_module(module), name, None)
    return None if found is None else frozenset(dir(found))


@cache
def is_abstract_base(path: str) -> bool:
    """Whether deriving from it makes abstract methods count (a class of metaclass ABCMeta of the standard library)."""
    module, _, name = path.rpartition(".")
    if module not in _ASKED:
        return path in ("typing_extensions.Protocol",)
    found = getattr(importlib.import_module(module), name, None)
    return name == "ABCMeta" or type(found).__name__ in ("ABCMeta", "_ProtocolMeta") or name == "Protocol"
