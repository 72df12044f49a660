"""The variables of comprehensions: none belongs to the function around it, even if it has the name of one there."""

import ast

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def name_apart(tree: ast.AST) -> None:
    """Rename the variables of each comprehension, in place, to names that nothing else in the tree has."""
    found = [node for node in ast.walk(tree) if isinstance(node, COMPREHENSIONS)]
    for number, node in enumerate(
        found
    ):  # from outside in: an inner one may have a variable of the same name
        own = {
            name.id
            for generator in node.generators
            for name in ast.walk(generator.target)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
        }
        around = {id(name) for name in ast.walk(node.generators[0].iter)}  # evaluated outside
        for name in ast.walk(node):
            if isinstance(name, ast.Name) and name.id in own and id(name) not in around:
                name.id += f"'{number}"
