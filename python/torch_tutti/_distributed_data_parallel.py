"""DistributedDataParallel over tutti's reducer: gradients are synchronized once for each optimizer step."""

import contextlib
import itertools

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from torch_tutti import _C, _comm_hooks, _step_hooks
from torch_tutti._backend import communicator_of
from torch_tutti.errors import UsageError

_numbers = itertools.count()


def _refuse(**options):
    for name, (value, default, instead) in options.items():
        if value is not None and value != default:
            raise UsageError(f"DistributedDataParallel({name}=...): {instead}")


def _sparse_weights(module):
    tables = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return {id(part.weight) for part in module.modules() if isinstance(part, tables) and part.sparse}


def _table_with_max_norm(module, parameters):
    """The name of a trained table of `parameters` whose forward renormalizes rows of the rank's own batch, or None."""
    synchronized = {id(tensor) for _, tensor in parameters}
    for name, part in module.named_modules():
        if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and part.max_norm is not None:
            if part.weight.requires_grad and id(part.weight) in synchronized:
                return name
    return None


def _drop_prefix_in_distributed_checkpoints():
    """Names parameters in torch.distributed.checkpoint as for PyTorch's class: without "module."."""
    import torch.distributed.checkpoint.state_dict as state_dict

    if not isinstance(state_dict.DDP, tuple):
        state_dict.DDP = (state_dict.DDP, DistributedDataParallel)


class DistributedDataParallel(torch.nn.Module, Joinable):
    """A model whose gradients are the mean over the ranks of a group when an optimizer uses them.

    Takes the arguments of torch.nn.parallel.DistributedDataParallel, and has those of its attributes that apply.
    Parameters must be in CPU memory, and the group must be over the backend tutti. Every rank must construct it, with
    the same model: MismatchError otherwise, with the difference.

    windows="automatic" learns how many backward passes a step has, and then synchronizes gradients in the last one
    only. If a step comes earlier, the step synchronizes first, and so do clip_grad_norm_(), clip_grad_value_() and a
    GradScaler. A program that reads .grad before such a step must call synchronize() first. windows="every_pass"
    synchronizes in each backward pass, as PyTorch's class does. Once no_sync() has been used, it alone decides.

    check_replicas=False turns off the comparison of a sampled hash of the parameters at each synchronization, for ranks
    on machines of different kinds, whose parameters may differ in their last bits.

    Every rank must copy (copy.deepcopy) or unpickle the model together. To copy it on one rank, copy model.module.
    """

    def __init__(
        self,
        module,
        device_ids=None,
        output_device=None,
        dim=0,
        broadcast_buffers=None,
        init_sync=True,
        process_group=None,
        bucket_cap_mb=None,
        find_unused_parameters=False,
        check_reduction=False,
        gradient_as_bucket_view=False,
        static_graph=False,
        delay_all_reduce_named_params=None,
        param_to_hook_all_reduce=None,
        mixed_precision=None,
        device_mesh=None,
        skip_all_reduce_unused_params=False,
        batched_grad_copy=False,
        lazy_bucket_allocation=False,
        forward_sync_buffers=None,
        *,
        windows="automatic",
        check_replicas=True,
    ):
        super().__init__()
        _drop_prefix_in_distributed_checkpoints()
        Joinable.__init__(self)
        on_devices = "parameters must be in CPU memory; for devices use PyTorch's DistributedDataParallel"
        no_delay = "not supported: gradients are synchronized as backward passes compute them"
        _refuse(
            device_ids=(device_ids, [], on_devices),
            output_device=(output_device, None, on_devices),
            mixed_precision=(mixed_precision, None, "use torch.autocast"),
            delay_all_reduce_named_params=(delay_all_reduce_named_params, None, no_delay),
            param_to_hook_all_reduce=(param_to_hook_all_reduce, None, no_delay),
        )
        if process_group is not None and device_mesh is not None:
            raise UsageError("DistributedDataParallel takes a process_group or a device_mesh, not both")
        if device_mesh is not None:
            if device_mesh.ndim != 1:
                raise UsageError(f"DistributedDataParallel takes a device_mesh of one dimension, not {device_mesh.ndim}")
            process_group = device_mesh.get_group()
        if windows not in ("automatic", "every_pass"):
            raise UsageError(f"windows={windows!r}: it must be 'automatic' or 'every_pass'")
        # find_unused_parameters, static_graph, gradient_as_bucket_view and the other options have no effect: tutti's
        # reducer determines these properties itself.
        self.module = module
        self.process_group = process_group or dist.group.WORLD
        self.device = torch.device("cpu")
        self.dim = dim
        self.find_unused_parameters = find_unused_parameters
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.static_graph = static_graph
        chosen = forward_sync_buffers if forward_sync_buffers is not None else broadcast_buffers
        self.broadcast_buffers = True if chosen is None else chosen
        self.require_forward_param_sync = True
        self._windows = windows
        self._check_replicas = check_replicas
        self._bucket_bytes = int(bucket_cap_mb * 1024 * 1024) if bucket_cap_mb else 0
        self._codec = ""
        self._requires_sync = True
        self._joining = False
        self._number = next(_numbers)
        self._communicator = communicator_of(process_group)
        self._check_module()
        self._make_reducer()
        if init_sync:
            self._replicate_model()
        # The number of the synchronization after which buffers were broadcast last.
        self._buffers_of_sync = 0 if init_sync else -1
        _step_hooks.watch(self)

    # Parameters, buffers and reducer.

    def _ignored(self):
        return set(getattr(self.module, "_ddp_params_and_buffers_to_ignore", ()))

    def _named_parameters(self):
        ignored = self._ignored()
        return [(name, tensor) for name, tensor in self.module.named_parameters() if name not in ignored]

    def _buffers_to_sync(self):
        ignored = self._ignored()
        return [tensor for name, tensor in self.module.named_buffers() if name not in ignored]

    def _check_module(self):
        parameters = self._named_parameters()
        if not any(tensor.requires_grad for _, tensor in parameters):
            raise UsageError("DistributedDataParallel is not needed: no parameter of the module requires a gradient")
        for name, tensor in parameters:
            if torch.nn.parameter.is_lazy(tensor):
                raise UsageError(f"parameter '{name}' has no shape yet: run the model once before wrapping it")
            if tensor.device.type != "cpu":
                raise UsageError(
                    f"parameter '{name}' is on {tensor.device}: gradients must be in CPU memory; for devices "
                    "use PyTorch's DistributedDataParallel"
                )
        table = _table_with_max_norm(self.module, parameters)
        if table is not None and self._check_replicas and dist.get_world_size(self.process_group) > 1:
            raise UsageError(
                f"the table '{table}' has max_norm: its forward renormalizes the rows of this rank's batch, so replicas "
                "would differ. Leave max_norm out and renormalize all rows after each step, on all ranks, or freeze the "
                "weight. If ranks may differ, set check_replicas=False"
            )

    def _make_reducer(self):
        named = self._named_parameters()
        sparse = _sparse_weights(self.module)
        self._trained = {id(tensor) for _, tensor in named if tensor.requires_grad}
        self._frozen = {id(tensor) for _, tensor in named if not tensor.requires_grad}
        self.reducer = _C.Reducer(
            names=[name for name, _ in named],
            tensors=[tensor for _, tensor in named],
            sparse=[id(tensor) in sparse for _, tensor in named],
            communicator=self._communicator,
            policy=self._windows,
            bucket_bytes=self._bucket_bytes,
            codec=self._codec,
            check_replicas=self._check_replicas,
        )

    def _replicate_model(self):
        ignored = self._ignored()
        buffers = [(name, tensor) for name, tensor in self.module.named_buffers() if name not in ignored]
        with torch.no_grad():
            _C.replicate_model(
                parameters=[tensor.detach() for _, tensor in self._named_parameters()],
                names=[name for name, _ in buffers],
                buffers=[tensor.detach() for _, tensor in buffers],
                buffers_may_differ=not self.broadcast_buffers,
                communicator=self._communicator,
            )

    # A step.

    def forward(self, *inputs, **keywords):
        if self._joining:
            self._notify_joined_ranks()
        self._sync_buffers()
        return self.module(*inputs, **keywords)

    @torch._dynamo.disable
    def _sync_buffers(self):
        if not self.broadcast_buffers:
            return
        # The number of synchronizations is equal on all ranks, so all ranks take the same branch.
        syncs = self.reducer.syncs()
        if syncs != self._buffers_of_sync:
            buffers = [tensor.detach() for tensor in self._buffers_to_sync()]
            if buffers:
                with torch.no_grad():
                    _C.replicate(buffers, self._communicator)
            self._buffers_of_sync = syncs

    def _before_step(self):
        # A step under no_sync() is local to this rank.
        if self._requires_sync:
            self.reducer.prepare_step()

    def _after_step(self):
        self.reducer.on_optimizer_step()

    def synchronize(self):
        """Synchronizes gradients that no backward pass has synchronized. Every rank must call it."""
        self.reducer.synchronize()

    def clip_grad_norm_(self, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
        """Calls torch.nn.utils.clip_grad_norm_() with the parameters of this model. Every rank must call it."""
        return torch.nn.utils.clip_grad_norm_(
            self.parameters(), max_norm, norm_type, error_if_nonfinite=error_if_nonfinite, foreach=foreach
        )

    def stats(self):
        """Returns counts and times of synchronization on this rank: passes, syncs, syncs_skipped, bytes_sent, ..."""
        return self.reducer.stats()

    # Control over synchronization.

    @property
    def require_backward_grad_sync(self):
        """True if backward passes may synchronize; False under no_sync()."""
        return self._requires_sync

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, required):
        if bool(required) == self._requires_sync:
            return
        self._requires_sync = bool(required)
        if required:
            self.reducer.leave_no_sync()
        else:
            self.reducer.enter_no_sync()

    @contextlib.contextmanager
    def no_sync(self):
        """Backward passes that run under it do not synchronize gradients."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def register_comm_hook(self, state, hook):
        """Sets the wire codec of gradients between nodes: fp16_compress_hook, bf16_compress_hook, allreduce_hook,
        quantization_pertensor_hook or quantization_perchannel_hook.

        tutti uses its own codecs for these hooks, and 8-bit integers for both of the latter. They round the values sent between nodes, and no values inside a
        node. Every rank must call it, before the first backward pass.
        """
        codec = _comm_hooks.codec_of(hook)
        if self.reducer.stats()["passes"] > 0 or self._codec:
            raise UsageError("register_comm_hook() must be called once, before the first backward pass")
        if codec != self._codec:
            self._codec = codec
            del self.reducer
            self._make_reducer()

    def _set_static_graph(self):
        """Sets the attribute of PyTorch's class. It has no effect."""
        self.static_graph = True

    # Ranks that run out of data (torch.distributed.algorithms.Join).

    def join(self, divide_by_initial_world_size=True, enable=True, throw_on_early_termination=False):
        """Ranks that run out of data contribute zeros until all ranks have finished, as with PyTorch's class."""
        return Join(
            [self], enable, throw_on_early_termination, divide_by_initial_world_size=divide_by_initial_world_size
        )

    def join_hook(self, divide_by_initial_world_size=True, **_):
        if not divide_by_initial_world_size:
            raise UsageError("join(divide_by_initial_world_size=False): the mean is over all ranks of the group")
        self._joining = True
        self.reducer.set_check_replicas(False)
        return _JoinHook(self)

    @property
    def join_device(self):
        return self.device

    @property
    def join_process_group(self):
        return self.process_group

    def _notify_joined_ranks(self):
        if Join.notify_join_context(self) is None and not self._join_config.enable:
            self._joining = False  # the context has ended
            self.reducer.set_check_replicas(self._check_replicas)
            return
        self._agree_on_pass(torch.is_grad_enabled() and self._requires_sync, self.reducer.steps())

    def _agree_on_pass(self, synchronizes, steps):
        """Returns whether the next backward pass synchronizes on any rank, and the highest number of steps taken."""
        state = torch.tensor([int(synchronizes), steps], dtype=torch.int64)
        dist.all_reduce(state, dist.ReduceOp.MAX, group=self.process_group)
        synchronizes, steps = state.tolist()
        if synchronizes:
            self.reducer.trigger_sync_in_backward()
        return bool(synchronizes), steps

    # Copying and pickling.

    def __getstate__(self):
        # A copy connects on the default process group, which ranks outside of this model's group would not enter.
        if self.process_group != dist.group.WORLD:
            raise UsageError(
                "a DistributedDataParallel with another process group cannot be copied or pickled: a copy needs the "
                "default process group. Copy model.module and wrap the copy"
            )
        state = dict(self.__dict__)
        for name in ("reducer", "process_group", "_communicator", "_trained", "_frozen"):
            state.pop(name, None)
        return state

    def __setstate__(self, state):
        super().__setstate__(state)
        self.process_group = dist.group.WORLD
        self._communicator = communicator_of(None)
        self._number = next(_numbers)
        self._requires_sync = True
        self._joining = False
        self._make_reducer()
        self._buffers_of_sync = 0
        _step_hooks.watch(self)


class _JoinHook(JoinHook):
    """The calls of a rank without further data that match the passes of the other ranks."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.began = False

    def _catch_up(self, steps):
        while self.model.reducer.steps() < steps:
            self.model.reducer.on_optimizer_step()

    def main_hook(self):
        model = self.model
        synchronizes, steps = model._agree_on_pass(False, 0)
        reducer = model.reducer
        # If other ranks have taken steps, this rank's gradients belong to an earlier step.
        if not self.began or reducer.steps() < steps:
            self._catch_up(steps)
            reducer.clear()
        self.began = True
        model._sync_buffers()
        if synchronizes:
            reducer.synchronize()

    def post_hook(self, is_last_joiner):
        """Broadcasts the parameters of a rank that trained to the end."""
        model = self.model
        rank = dist.get_rank(model.process_group)
        last = torch.tensor([rank if is_last_joiner else -1], dtype=torch.int64)
        dist.all_reduce(last, dist.ReduceOp.MAX, group=model.process_group)
        steps = torch.tensor([model.reducer.steps()], dtype=torch.int64)
        dist.all_reduce(steps, dist.ReduceOp.MAX, group=model.process_group)
        self._catch_up(steps.item())
        tensors = [tensor for _, tensor in model._named_parameters()] + model._buffers_to_sync()
        with torch.no_grad():
            for tensor in tensors:
                dist.broadcast(tensor.detach(), group_src=int(last.item()), group=model.process_group)
        model._buffers_of_sync = model.reducer.syncs()
        model.reducer.clear()
        model._joining = False
        model.reducer.set_check_replicas(model._check_replicas)
