"""Everything that training changes, as tensors by name: what a checkpoint holds."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from springwell.data.source import DataSource
from springwell.errors import DivergenceError, UserError
from springwell.store.checkpoint import Checkpoint, good_checkpoints, match, save_checkpoint
from springwell.store.run import Run
from springwell.training.task import Task


class TrainingState:
    """The weights, their average, Adam's moments, step sizes and statistics of one attempt at a run.

    Args:
        task: What is trained.
        device: Where.
        scaler: Scales the loss in half precision.
    """

    def __init__(self, task: Task, device: torch.device, scaler: torch.amp.GradScaler | None = None):
        options = task.options
        self.task, self.scaler = task, scaler
        self.energy = copy.deepcopy(task.energy).to(device)
        self.average = copy.deepcopy(task.energy).to(device).requires_grad_(False)
        groups = [
            {"params": [p for p in self.energy.parameters() if p.ndim > 1], "weight_decay": options.weight_decay},
            {"params": [p for p in self.energy.parameters() if p.ndim <= 1], "weight_decay": 0.0},
        ]
        betas = (options.beta1, options.beta2)
        groups = [group for group in groups if group["params"]]
        self.adam = torch.optim.AdamW(groups, lr=options.lr, betas=betas, eps=options.adam_eps, fused=True)
        self.step_size = task.sampler.steps(torch.arange(task.schedule.num_levels)).clone().to(device)
        # The number of samples, then the sums of their loss and of the objective's statistics, by level.
        self.statistics = torch.zeros(task.schedule.num_levels, 2, dtype=torch.float64, device=device)
        # The usual norm of the gradient, of how many iterations it is the mean, and how often the run was rolled back.
        self.guard = torch.zeros(3, dtype=torch.float64, device=device)

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name; the tensors themselves, except for the scaler's numbers."""
        data = self.task.data
        model = {f"energy.{name}": tensor for name, tensor in self.average.state_dict().items()}
        model |= {"step_size": self.step_size, "shift": data.shift, "scale": data.scale}
        tensors = {f"model.{name}": tensor for name, tensor in model.items()}
        tensors |= {f"current.{name}": tensor for name, tensor in self.energy.state_dict().items()}
        tensors |= optimizer_tensors(self.adam, self.energy)
        tensors |= {"statistics": self.statistics, "guard": self.guard, "data": torch.tensor(data.fingerprint)}
        return tensors if self.scaler is None else tensors | {"scaler": scaler_tensor(self.scaler)}

    def save(self, run: Run, iteration: int, writes: bool) -> None:
        """Saves a checkpoint, unless something is not finite; processes that do not write check alike."""
        tensors = self.tensors()
        if bad := next((name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())), None):
            raise DivergenceError(f"training diverged before iteration {iteration}: '{bad}' is not finite")
        if writes:
            save_checkpoint(run.checkpoints, tensors, iteration, self.task.options.keep)

    @torch.no_grad()
    def restore(self, run: Run, warn: Callable[[str], None]) -> int:
        """Copies the newest good checkpoint into the state and returns its iteration; 0 if there is none."""
        foreign, tensors = None, self.tensors()
        for checkpoint in good_checkpoints(run.checkpoints, warn) if run.checkpoints.exists() else ():
            check_data(checkpoint, self.task.data, run)
            try:
                match(checkpoint.tensors, tensors, checkpoint.path.name)
            except UserError as error:
                foreign = error
                warn(f"passing over a bad checkpoint: {error}")
                continue
            for name, tensor in tensors.items():
                tensor.copy_(checkpoint.tensors[name])
            if self.scaler is not None:
                restore_scaler(self.scaler, tensors["scaler"])
            return checkpoint.iteration
        if foreign is not None:
            raise UserError(f"{run.path}: {foreign}, and there is no other; choose another folder, or remove its checkpoints")
        return 0


def check_data(checkpoint: Checkpoint, data: DataSource, run: Run) -> None:
    """Refuses to go on with a run that was trained on other data."""
    tensors = {"model.shift": data.shift, "model.scale": data.scale, "data": torch.tensor(data.fingerprint)}
    for name, tensor in tensors.items():
        known = checkpoint.tensors.get(name)
        if known is not None and not torch.equal(known, tensor.cpu()):
            raise UserError(f"{run.path}: its data are not what they were; restore them or choose another folder")


def optimizer_tensors(adam: torch.optim.AdamW, energy: nn.Module) -> dict[str, Tensor]:
    """Adam's state by parameter name; it is made here, before the first step, so that it can be saved and restored."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in energy.named_parameters():
        entry = adam.state[parameter]
        entry.setdefault("step", torch.zeros((), device=parameter.device))
        for moment in ("exp_avg", "exp_avg_sq"):
            entry.setdefault(moment, torch.zeros_like(parameter, memory_format=torch.preserve_format))
        tensors |= {f"optimizer.{kind}.{name}": tensor for kind, tensor in entry.items()}
    return tensors


def scaler_tensor(scaler: torch.amp.GradScaler) -> Tensor:
    """``[2]``, float64: what the loss is multiplied by in fp16, and for how many steps that has gone well."""
    values = scaler.state_dict()
    return torch.tensor([values["scale"], values["_growth_tracker"]], dtype=torch.float64)


def restore_scaler(scaler: torch.amp.GradScaler, values: Tensor) -> None:
    """Takes the numbers that :func:`scaler_tensor` gave."""
    scaler.load_state_dict({**scaler.state_dict(), "scale": float(values[0]), "_growth_tracker": int(values[1])})
