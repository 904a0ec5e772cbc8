"""Hooks that torch calls before and after every optimizer step, and that call the models concerned.

Gradients that no backward pass has synchronized are synchronized before they are used: by step(), by clipping, and by
the check of a GradScaler for infinity.
"""

import functools
import weakref

import torch
from torch.optim import optimizer as torch_optimizer

_models = weakref.WeakSet()
_generation = 0  # changes with _models
_of_optimizers = weakref.WeakKeyDictionary()
_inner = weakref.WeakSet()  # optimizers whose steps are part of those of another one
_installed = False


def watch(model):
    """Calls the hooks of `model` at the steps of every optimizer that has a parameter of the model."""
    global _generation
    _models.add(model)
    _generation += 1
    _install()


def _models_with(parameters):
    """The models that train one of `parameters`, or that refuse one because it was unfrozen after their construction."""
    parameters = list(parameters)
    wanted = {id(parameter) for parameter in parameters}
    unfrozen = {id(parameter) for parameter in parameters if parameter.requires_grad}
    # In the order of construction, which is equal on all ranks.
    models = sorted(_models, key=lambda model: model._number)
    return [model for model in models if not (wanted.isdisjoint(model._trained) and unfrozen.isdisjoint(model._frozen))]


def _models_of(optimizer):
    if optimizer in _inner:
        return []
    groups = optimizer.param_groups
    # The parameters are part of the key, because a replaced parameter may belong to another model.
    parameters = [parameter for group in groups for parameter in group["params"]]
    key = (_generation, tuple((id(parameter), parameter.requires_grad) for parameter in parameters))
    found = _of_optimizers.get(optimizer)
    if found is None or found[0] != key:
        found = (key, [weakref.ref(model) for model in _models_with(parameters)])
        _of_optimizers[optimizer] = found
    return [model for model in (reference() for reference in found[1]) if model is not None]


def _before_step(optimizer, arguments, keywords):
    # ZeroRedundancyOptimizer has the optimizer of this rank's shard, which may have no parameter of a model.
    shard = getattr(optimizer, "optim", None)
    if isinstance(shard, torch.optim.Optimizer):
        _inner.add(shard)
    for model in _models_of(optimizer):
        model._before_step()


def _after_step(optimizer, arguments, keywords):
    for model in _models_of(optimizer):
        model._after_step()


def _before_reading(function):
    """Wraps a function that reads the gradients of its first argument, a parameter or several."""

    @functools.wraps(function)
    def synchronized(parameters, *arguments, **keywords):
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        for model in _models_with(parameters):
            model._before_step()
        return function(parameters, *arguments, **keywords)

    return synchronized


def _before_scaling(method):
    """Wraps a method of a GradScaler that reads the gradients of an optimizer."""

    @functools.wraps(method)
    def synchronized(scaler, optimizer, *arguments, **keywords):
        if scaler.is_enabled():
            for model in _models_of(optimizer):
                model._before_step()
        return method(scaler, optimizer, *arguments, **keywords)

    return synchronized


def _install():
    global _installed
    if _installed:
        return
    _installed = True
    torch_optimizer.register_optimizer_step_pre_hook(_before_step)
    torch_optimizer.register_optimizer_step_post_hook(_after_step)
    # The functions are exported by both modules.
    for module in (torch.nn.utils, torch.nn.utils.clip_grad):
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            setattr(module, name, _before_reading(getattr(torch.nn.utils.clip_grad, name)))
    scaler = torch.amp.GradScaler
    scaler.unscale_ = _before_scaling(scaler.unscale_)
    scaler._check_inf_per_device = _before_scaling(scaler._check_inf_per_device)
