"""Read a YAML file of settings, strictly.

Guarantees: a file that cannot be read, is not UTF-8, not YAML, or names a key twice is refused in one line with file,
place and remedy (plain YAML takes the last of two keys in silence). Values are plain: nothing is constructed.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml


class YamlError(ValueError):
    """The file cannot be used; the text is one line that says why and what to do."""


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key that stands twice in one mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                line = key.start_mark.line + 1
                if key.value in lines:
                    raise YamlError(f"key {key.value!r} stands in line {lines[key.value]} and in line {line}; keep one")
                lines[key.value] = line
        return super().construct_mapping(node, deep)


def read_yaml(path: str | Path) -> Any:
    """The value in the YAML file `path`; None when it holds nothing. Raises YamlError."""
    file = Path(path)
    try:
        return yaml.load(file.read_text(encoding="utf-8"), _Loader)
    except YamlError as e:
        raise YamlError(f"{file}: {e}") from None
    except yaml.YAMLError as e:
        raise YamlError(f"{file}: not valid YAML: {' '.join(str(e).split())}") from None
    except UnicodeDecodeError as e:
        raise YamlError(f"{file}: not UTF-8 text (byte {e.start}); save it as UTF-8") from None
    except RecursionError:
        raise YamlError(f"{file}: nested too deeply to be read") from None
    except FileNotFoundError:
        raise YamlError(f"{file}: not found. Run from the repository root, or pass --params FILE.") from None
    except OSError as e:
        raise YamlError(f"{file}: cannot be read: {e.strerror or e}. Give a file that you may read.") from None
