"""Parameters as a stage may read them: those that dvc.yaml lists for it, so that no change goes unnoticed."""

from __future__ import annotations

from typing import Any

from pydantic import PrivateAttr

from guiderail.params import ParamError, Params


class _Guarded(Params):
    """Params that refuse to be read outside what dvc.yaml lists: a change of the rest would re-run nothing."""

    _stage: str = PrivateAttr("")
    _sections: frozenset[str] = PrivateAttr(frozenset(Params.model_fields))

    def __getattribute__(self, name: str) -> Any:
        if name in Params.model_fields and name not in self._sections:
            raise ParamError(
                f"stage {self._stage} reads params.{name}, which dvc.yaml does not list under its `params:`; "
                "add it there, or changing it would re-run nothing"
            )
        return super().__getattribute__(name)


def guarded(params: Params, stage: str, keys: list[str]) -> Params:
    """`params` restricted to the sections of `keys` (plus env, model and tracking, whose machine knobs are free to
    read).
    """
    view = _Guarded.model_construct(**dict(params))
    view._stage = stage
    view._sections = frozenset(k.split(".")[0] for k in keys) | {"tracking", "env", "model"}
    return view
