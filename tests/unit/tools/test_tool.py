from typing import Any, ClassVar

from reasond_server.tools.tool import ModelledTool, ToolArguments, ToolContext


def test_the_schema_of_a_class_of_arguments_is_made_once_because_every_run_asks_for_it() -> None:
    class Word(ToolArguments):
        made: ClassVar[int] = 0

        @classmethod
        def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
            cls.made += 1
            return super().model_json_schema(*args, **kwargs)

    class Lookup(ModelledTool[Word]):
        name = "lookup"
        description = "Looks a word up."
        arguments_type = Word

        async def call(self, arguments: Word, context: ToolContext) -> object:
            del context
            return arguments.model_dump()

    assert Lookup().parameters == Lookup().parameters
    assert Word.made == 1
