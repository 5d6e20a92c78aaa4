"""The rules by number: what each looks for, what Python raises, and what to do. `--explain` prints them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """One rule: its number, the kind its findings carry, and its explanation."""

    id: str
    kind: str
    exception: str
    title: str
    why: str
    fix: str


RULES = (
    Rule(
        "VPD001",
        "unreadable",
        "",
        "a part of a tree cannot be read",
        "The file has a syntax error for this Python, is too large, is a link, or the tree tells no version. Nothing "
        "is said of what it defines: names that come from it count as existing.",
        "Give a complete source tree; with no version in it, name one with --core-version or --plugin-version.",
    ),
    Rule(
        "VPD101",
        "missing-module",
        "ModuleNotFoundError",
        "an import names a module that this core does not have",
        "The module was moved, renamed or removed. Imports inside functions fail when the function runs; those under "
        "TYPE_CHECKING or inside a handler of ImportError do not fail and are notes.",
        "Import from the new place, or put the import under a version branch.",
    ),
    Rule(
        "VPD102",
        "missing-name",
        "ImportError",
        "an import names something that its module in this core does not define",
        "The module is there and neither defines, imports nor lazily answers the name. A name that the core binds only "
        "under TYPE_CHECKING is not there when the program runs.",
        "Import the new name, or put the import under a version branch.",
    ),
    Rule(
        "VPD103",
        "missing-attribute",
        "AttributeError",
        "an attribute is read that the core no longer defines",
        "The object's class (or module) is known from an annotation, a constructor or `self`; neither it, its bases "
        "nor its subclasses define or set the attribute.",
        "Use what replaced the attribute; where both cores are wanted, ask with hasattr or a version branch.",
    ),
    Rule(
        "VPD201",
        "call-argument",
        "TypeError",
        "a call passes what this core's function does not take, or leaves out what it needs",
        "The called function, method or constructor is resolved through imports and classes; its parameters (for a "
        "dataclass: its fields) cannot be filled by the call.",
        "Pass what this core's signature asks for.",
    ),
    Rule(
        "VPD301",
        "override-signature",
        "TypeError",
        "an override cannot take the calls that the core makes",
        "The core calls the method with arguments that its own definition takes and the plugin's override refuses. "
        "Without such a call in the core the difference is a note.",
        "Give the override the core's parameters.",
    ),
    Rule(
        "VPD302",
        "override-kind",
        "TypeError",
        "a property overrides a method, or a method a property",
        "The core uses the member as its own class defines it: calling a property's value, or reading a method as a "
        "value, goes wrong.",
        "Define the member as the core does.",
    ),
    Rule(
        "VPD303",
        "abstract-method",
        "TypeError",
        "a class leaves out a method that the core declares abstract",
        "Python refuses to make an object of the class while an abstract method is left.",
        "Implement the method.",
    ),
    Rule(
        "VPD304",
        "narrowed-parameter",
        "AttributeError",
        "an override reads attributes of a class of the plugin's where the core passes its own class",
        "The override annotates a parameter with a class that the plugin derives from the core's and reads what that "
        "adds. A call in the core makes an object of its own class and passes it, and nothing of the plugin replaces "
        "the way there.",
        "Replace or override what makes the object, or read the attribute with a default.",
    ),
    Rule(
        "VPD401",
        "dataclass-order",
        "TypeError",
        "a dataclass puts a field without default behind the core's fields with defaults",
        "Python refuses such a class when it is defined, that is when its module is imported.",
        "Give the field a default, or declare it keyword-only.",
    ),
    Rule(
        "VPD402",
        "dataclass-field",
        "TypeError",
        "a dataclass's fields are passed by position in another order",
        "An argument is called like one field and stands in the place of another: the core reordered its fields, and "
        "nothing is raised.",
        "Pass the fields by name.",
    ),
    Rule(
        "VPD501",
        "replacement-signature",
        "TypeError",
        "something put in place of a core function or class cannot take the core's own calls",
        "The plugin assigns it into the core's module or class. The core's call passes arguments that its own "
        "definition takes and the replacement refuses.",
        "Give the replacement the core's parameters.",
    ),
    Rule(
        "VPD502",
        "replacement-target",
        "",
        "the plugin replaces something that this core does not have",
        "Nothing is raised: the assignment makes a new name, and the core's own code no longer passes through it.",
        "Find where the core does it now and replace that.",
    ),
    Rule(
        "VPD503",
        "uninitialised",
        "AttributeError",
        "a core method that the plugin inherits reads an attribute that only the core's own __init__ sets",
        "The plugin's class has its own __init__ and does not call the core's, so the attribute is never set.",
        "Set the attribute, or call the core's __init__.",
    ),
    Rule(
        "VPD504",
        "substitute-member",
        "AttributeError",
        "a class put in place of a core class lacks a method that the core calls",
        "The plugin assigns its class into the core's module; the core makes objects of it and calls on them what its "
        "own class has. (A property where the core calls is VPD302, a method that refuses the call VPD501.)",
        "Give the class the core's methods, or derive it from the core's class.",
    ),
    Rule(
        "VPD601",
        "hook-target",
        "HookRefused",
        "a hook's target is missing or not as the hook relies on",
        "A hook of this kit names a function of the core or the plugin, and for replaced behaviour the hash of its "
        "body. Where one differs the hook is refused when the engine starts; nothing is half-installed.",
        "Read what changed; if the hook still holds, add the hash that `vllm-pairs hash` prints.",
    ),
)
BY_ID = {rule.id: rule for rule in RULES}
BY_KIND = {rule.kind: rule for rule in RULES}
