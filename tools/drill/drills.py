"""The table of drills, and their scripts: what is broken, when, and how it is made whole again."""

from __future__ import annotations

from tools.drill.run import Drill, Stage


async def kill_and_restart(stage: Stage) -> None:
    """One broker, killed and started again, three times: nothing that was in the page cache may be missing."""
    node = stage.cluster.nodes[0]
    await stage.calm(0.25)
    for turn in range(2):
        stage.fault(f"kill -9 {node.name}")
        node.kill()
        if node.status == -9:
            stage.hit(f"{node.name} ended by signal 9")
        await stage.restart(node)
        if not await stage.until_acknowledged():
            stage.broken("no way back", f"{node.name} is ready, and acknowledges nothing")
        await stage.calm(0.3 if turn == 0 else 0.1)


DRILLS = (
    Drill(
        name="kill-restart",
        title="kill -9 a single broker under load, and start it again, twice",
        expects="Every acknowledged message is there after recovery; writes go on as soon as it is ready.",
        members=1,
        script=kill_and_restart,
    ),
)


def find(name: str) -> Drill | None:
    """The drill of this name."""
    return next((drill for drill in DRILLS if drill.name == name), None)


__all__ = ["DRILLS", "Drill", "find"]
