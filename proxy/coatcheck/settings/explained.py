"""Wrong settings, told to a person: which variable or key, what is wrong, what to write.

Values are never repeated: one of them may be a token that stands in the wrong place.
"""

import json
import tomllib
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from coatcheck.platform.errors import CoatcheckError
from coatcheck.settings.daemon import PREFIX, Settings, UnknownSetting, load, process_environment

USAGE = 2
"""The exit code of wrong use (`cli.errors.ExitCode`)."""


class SettingsProblem(CoatcheckError):
    """The settings cannot be used. `hint` says what to write."""

    exit_code = USAGE


def load_settings(**options: Any) -> Settings:
    """`settings.load` with options of a command line, None meaning not given. Raises SettingsProblem."""
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return load(**given)
    except ValidationError as error:
        raise _invalid(error, given) from None
    except SettingsError as error:
        raise _not_json(error) from None
    except UnknownSetting as error:
        raise _unknown(str(error)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        what = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise SettingsProblem(
            f"the settings file {_file()} is not TOML: {what}", 'write it as: name = "value"'
        ) from None
    except OSError as error:
        raise SettingsProblem(str(error), f"correct {PREFIX}CONFIG, or unset it") from None


def _invalid(error: ValidationError, given: dict[str, Any]) -> SettingsProblem:
    messages, hints = [], []
    for found in error.errors(include_url=False, include_input=False, include_context=False):
        name = str(found["loc"][0]) if found["loc"] else ""
        said = found["msg"].removeprefix("Value error, ")
        if found["type"] == "extra_forbidden":
            messages.append(f"{name} in {_file()} is not a Coatcheck setting")
            hints.append(_nearest(name, tuple(Settings.model_fields)))
        elif name:
            messages.append(f"{_place(name, given)}: {said}")
            hints.append(f"{_place(name, given)}: {_meaning(name)}")
        else:
            messages.append(said)
            hints.append("see coatcheck serve --settings")
    return SettingsProblem("\n".join(messages), "\n".join(hints))


def _not_json(error: SettingsError) -> SettingsProblem:
    name = next((name for name in Settings.model_fields if f'"{name}"' in str(error)), "")
    example = '{"api.example.com:443": "10.0.0.7:443"}' if name == "connect_to" else '["…", "…"]'
    return SettingsProblem(
        f"{PREFIX}{name.upper()} is not JSON, in which settings with several values are written",
        f"write {PREFIX}{name.upper()}='{example}'; {_meaning(name)}",
    )


def _unknown(message: str) -> SettingsProblem:
    name = message.partition(" ")[0]
    return SettingsProblem(
        f"{name} is not a Coatcheck setting",
        _nearest(name, (*(PREFIX + field.upper() for field in Settings.model_fields), f"{PREFIX}CONFIG")),
    )


def _nearest(name: str, known: tuple[str, ...]) -> str:
    near, all_of_them = get_close_matches(name, known, 1), "all of them: coatcheck serve --settings"
    return f"did you mean {near[0]}? {all_of_them}" if near else all_of_them


def _place(name: str, given: dict[str, Any]) -> str:
    if name in given:
        return "--" + name.replace("_", "-")
    variable = PREFIX + name.upper()
    return variable if variable in process_environment() or not _file() else f"{name} in {_file()}"


def _file() -> str:
    return process_environment().get(PREFIX + "CONFIG", "")


def _meaning(name: str) -> str:
    field = Settings.model_fields.get(name)
    return field.description or "" if field is not None else ""


def describe() -> list[tuple[str, str, str]]:
    """Every setting: variable, default as it is written, meaning with unit. For `--help` and the guide."""
    return [
        (
            PREFIX + name.upper(),
            # A default that follows from where we are is described, not computed: documents are the same
            # on every machine.
            "unset" if field.default_factory is not None else _default(field.default),
            field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ]


def _default(value: object) -> str:
    match value:
        case None | "" | () | {}:
            return "unset"
        case bool():
            return str(value).lower()
        case float() if value.is_integer():
            return str(int(value))
        case tuple():
            return json.dumps(value)
        case _:
            return str(value)
