"""Variables that lines after a step of `session.steps` have changed for the body of later ones, as texts to compare.

A worker that comes in at a step runs the lines after the newest one alone: what earlier ones put in once, another loss,
a rate of noise, it does not have.
"""

from collections.abc import Collection, Iterator

from ringleader.program_text.current_line import running_frames
from ringleader.program_text.loop_bodies import text_of
from ringleader.program_text.variables.lines_after_steps import left_to_later_steps
from ringleader.train.between_calls.call_variables import CallVariables
from ringleader.train.between_calls.findings import STEPS_CURE, STEPS_HOW, VariableFinding
from ringleader.train.between_calls.objects.value_kinds import plain_name
from ringleader.train.state.training_state import TrainingState


def left_by_lines(
    held: TrainingState, passing: Collection[str]
) -> Iterator[tuple[str, str, VariableFinding]]:
    """Each of them in the running functions and the objects in their reach: its name, its text, and the finding where
    another member has something else.

    Args:
        passing: attributes that turns set before they read them.
    """
    texts = filter(None, map(text_of, {frame.f_code.co_filename for frame in running_frames()}))
    keys = frozenset(key for text in texts for key in left_to_later_steps(text))
    if not keys:
        return
    read = CallVariables(held, {}, {}, passing, only=keys)
    read.add_variables(None)
    for name, text in read.texts.items():
        variable = plain_name(name.rpartition(":")[2])
        yield name, text, VariableFinding(variable, read.lines[name][0], STEPS_CURE, STEPS_HOW)
