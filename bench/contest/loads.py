"""What else goes on where ranks run: burners beside them, another policy of the scheduler, a quota of processor time."""

import os
import pathlib
import sys
import time

from contestants import LOCAL, Failed, processors, run

BESIDE = LOCAL / "contest.beside"
PERIOD_US = 100_000
# The kernel takes a moment to see that a group's last process has ended.
LEAVE_S = 5


class Load:
    """`words` stand before the driver; `enter` is called in the child before it becomes the launcher."""

    def __init__(self, name, burners=0, session="own", batch=False, quota=False):
        self.name, self.batch, self.quota = name, batch, quota
        self.words = [BESIDE, f"burners={burners}", f"session={session}", "--"] if burners else []
        self.group = None

    def begin(self):
        """Why it cannot be had here, or nothing."""
        if self.quota:
            self.group, why = half_quota()
            if why:
                return why
        try:
            # A group that can be made may still refuse processes.
            run(["true"], enter=self.enter)
        except Failed as error:
            self.end()
            return str(error)
        return None

    def end(self):
        if self.group:
            remove(self.group)
            self.group = None

    def enter(self):
        if self.batch:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        if self.group:
            (self.group / "cgroup.procs").write_text("0", encoding="ascii")


LOADS = [
    Load("quiet"),
    Load("1 burner", burners=1),
    Load("1 burner in the session", burners=1, session="same"),
    Load("2 burners", burners=2),
    Load("2 burners in the session", burners=2, session="same"),
    Load("batch and 1 burner", burners=1, batch=True),
    Load("half quota", quota=True),
]


def half_quota():
    """A control group that may use half of the processors, and why there is none: one of them is None."""
    quota, whys = PERIOD_US * processors() // 2, []
    for folder, version in own_groups():
        group = folder / f"rsccl-contest-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as error:
            whys.append(str(error))
            continue
        try:
            if version == 1:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="ascii")
                (group / "cpu.cfs_quota_us").write_text(str(quota), encoding="ascii")
            else:
                (group / "cpu.max").write_text(f"{quota} {PERIOD_US}", encoding="ascii")
            return group, None
        except OSError as error:
            # Version 2 has the file only where the group above gives its children the controller.
            whys.append(str(error))
            remove(group)
    return None, "; ".join(whys) or "no control groups for processors are mounted"


def own_groups():
    """The folders of this process's control groups that may rule processors, with their version."""
    mounts = {}
    for line in pathlib.Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, place, kind, options = line.split()[:4]
        if kind == "cgroup2" or (kind == "cgroup" and "cpu" in options.split(",")):
            mounts[2 if kind == "cgroup2" else 1] = pathlib.Path(place)
    for line in pathlib.Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        version = 2 if controllers == "" else 1
        if version in mounts and (version == 2 or "cpu" in controllers.split(",")):
            yield mounts[version] / path.lstrip("/"), version


def remove(group):
    """Once all of its processes have ended."""
    last = time.monotonic() + LEAVE_S
    while True:
        try:
            group.rmdir()
            return
        except OSError as error:
            if time.monotonic() > last:
                print(f"contest: {group} stays behind: {error}", file=sys.stderr)
                return
            time.sleep(0.05)
