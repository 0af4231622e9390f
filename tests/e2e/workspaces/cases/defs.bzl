"""A rule whose output is a folder, of which only the name is known until it is built."""

def _tree_impl(ctx):
    folder = ctx.actions.declare_directory(ctx.label.name)
    ctx.actions.run_shell(
        outputs = [folder],
        arguments = [folder.path, str(ctx.attr.count)],
        command = """set -e; mkdir -p "$1"; cd "$1"; i=0
while [ $i -lt $2 ]; do mkdir -p d$((i % 7)); echo file $i > d$((i % 7))/f$i; i=$((i + 1)); done
mkdir -p d0/deep/er; printf '#!/bin/sh\necho yes\n' > d0/deep/er/run; chmod +x d0/deep/er/run""",
        mnemonic = "Tree",
    )
    return [DefaultInfo(files = depset([folder]))]

tree = rule(
    implementation = _tree_impl,
    attrs = {"count": attr.int(default = 10)},
)
