"""``rollout debug``: the learner and the engine under the microscope."""
