#pragma once
// A Communicator: one group of ranks and the collectives among them.
//
// Every collective must be called by every rank of the group, in the same order, with tensors of the same shape and
// dtype. Each call exchanges a fingerprint (operation, shape, dtype, op, name) before any data, so a mismatch is a
// MismatchError on every rank instead of garbage. Each call has a deadline: a rank that does not arrive becomes a
// TimeoutError, one that died a PeerError, both naming the rank and the operation. After either the Communicator is
// failed: every later call throws at once, and buffers of operations still under way are kept alive until they end.
//
// A Communicator is a small value: copies share one channel. Calls on one channel run in the order in which they were
// made; use duplicate() for a channel of its own. Methods may be called from several threads if these agree on the
// order across ranks.
#include <ATen/core/TensorBody.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/comm/topology.h"
#include "tutti/comm/wire_codec.h"
#include "tutti/comm/work.h"
#include "tutti/core/call_site.h"
#include "tutti/core/environment.h"

namespace c10d {
class Store;
}

namespace tutti {

/// How a collective combines what the ranks have, element by element.
enum class ReduceOp {
  sum,      ///< in one order, whatever carries the bytes
  mean,     ///< the sum divided by the number of ranks; floating dtypes only
  min,      ///< the smallest
  max,      ///< the largest
  product,  ///< multiplied
  bit_and,  ///< of integers and bool
  bit_or,   ///< of integers and bool
  bit_xor,  ///< of integers and bool
};

/// How ranks are connected. Every rank gives the same.
struct CommunicatorOptions {
  /// What carries the bytes: "auto" (shared memory inside a node, Gloo between nodes, both where nodes hold equal
  /// powers of two of neighbouring ranks; nothing for one rank), "mpi" (the same with MPI in Gloo's place), "gloo",
  /// "mpi_only" (no shared memory), "shared_memory", "hierarchical" (nodes of equal numbers of neighbouring ranks),
  /// "nccl" (gradients on CUDA devices over NCCL, everything else as "auto"; each rank of a node needs a device).
  /// UsageError where it cannot be had. The variable TUTTI_BACKEND stands in for "auto" (docs/launching.md).
  std::string backend = "auto";
  /// The deadline of every operation that does not set its own.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// How long connecting may take: reaching the master, and waiting for all ranks.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);
};

/// What one call may set.
struct CallOptions {
  /// Its deadline. Unset: CommunicatorOptions::timeout.
  std::optional<std::chrono::milliseconds> timeout{};
  /// Named in errors, for example "validation loss".
  std::string name{};
  /// Where the program makes it, for those who look for a rank that does not come. Filled in by the compiler.
  CallSite where = CallSite::here();
};

namespace comm {
class Backend;
class OperationQueue;
struct Services;
class PendingAllReduce;
class PendingAllGather;
class PendingAllGatherV;
}  // namespace comm

/// A group of ranks. A small value: copies share one channel.
class Communicator {
 public:
  /// One rank, no network: every collective is the identity.
  Communicator();

  /// Joins the job that `environment` describes. Every rank must call it. Throws UsageError (unknown backend, port in
  /// use) and TimeoutError (unreachable master, or ranks that did not come: they are named).
  static Communicator connect(const Environment& environment, const CommunicatorOptions& options = {});
  /// Joins the group of `size` ranks that share `store` (any of c10d's), as rank `rank`. Which ranks live on one node
  /// is found out: same machine, same namespaces of processes and network. The group keeps connections of its own to
  /// the store. Groups over one store each need a c10d::PrefixStore, unless all ranks connect them in the same order.
  /// Every rank must call it. Throws UsageError (ranks that contradict one another), TimeoutError (ranks that did not
  /// come: they are named) and PeerError.
  static Communicator connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                              const CommunicatorOptions& options = {});

  /// This rank's number in the group, 0 .. size() - 1.
  int rank() const;
  /// Ranks in the group.
  int size() const;
  /// Which rank of the group lives on which node.
  const Topology& topology() const;
  /// What carries the bytes: "gloo", "mpi", "shared memory + gloo", "threads", "single" and so on.
  const std::string& backend_name() const;

  // Collectives. Tensors are dense CPU tensors; they must stay untouched until the Work is waited for.

  /// Combines `tensor` over all ranks, in place. The order of the sum is fixed by the number of ranks, whatever carries
  /// the bytes (neighbours first: ((0 + 1) + (2 + 3)) + 4): all ranks get the same bits. mean divides the sum by size()
  /// and needs a floating dtype.
  Work all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::sum, const CallOptions& call = {}) const;
  /// `output` (size * n elements, flat order by rank) receives every rank's `input` (n elements).
  Work all_gather(at::Tensor output, at::Tensor input, const CallOptions& call = {}) const;
  /// `output` (n elements) receives this rank's part of the combination of all ranks' `input` (size * n elements).
  Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op = ReduceOp::sum,
                      const CallOptions& call = {}) const;
  /// Part r of `input` goes to rank r; part r of `output` comes from rank r. Both hold size * n elements.
  Work all_to_all(at::Tensor output, at::Tensor input, const CallOptions& call = {}) const;
  /// `inputs[r]` goes to rank r; `outputs[r]` comes from rank r. Parts may differ in size, and be empty; what a rank
  /// sends must be as long as what the other takes. All have one dtype, the same on all ranks.
  Work all_to_all_v(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                    const CallOptions& call = {}) const;
  /// `outputs[r]` of the root receives the `input` of rank r; other ranks give no outputs.
  Work gather(const std::vector<at::Tensor>& outputs, at::Tensor input, int root = 0,
              const CallOptions& call = {}) const;
  /// `output` receives `inputs[rank()]` of the root; other ranks give no inputs.
  Work scatter(at::Tensor output, const std::vector<at::Tensor>& inputs, int root = 0,
               const CallOptions& call = {}) const;
  /// The root's `tensor` becomes the combination that all_reduce() would give; those of others stay as they are.
  Work reduce(at::Tensor tensor, int root = 0, ReduceOp op = ReduceOp::sum, const CallOptions& call = {}) const;
  /// Every rank's `tensor` becomes that of `root`.
  Work broadcast(at::Tensor tensor, int root = 0, const CallOptions& call = {}) const;
  /// Ends when every rank has called it.
  Work barrier(const CallOptions& call = {}) const;

  // Messages from rank to rank, in no order with collectives: neither waits for the other. They go by TCP, over
  // connections that the first ones make, on a thread of their own.

  /// Sends `tensor` to rank `peer`. Messages with one `tag` (0 or more) arrive in the order in which they were sent.
  /// Ends when the system has taken the bytes, whether the peer has asked for them or not. Throws UsageError for a peer
  /// that is no other rank of the group. Ends with TimeoutError or PeerError naming the peer; the group can still be
  /// used.
  Work send(at::Tensor tensor, int peer, int tag = 0, const CallOptions& call = {}) const;
  /// `tensor` becomes the next message of rank `peer` with that `tag`, which must have as many bytes: MismatchError
  /// otherwise, and the message is lost.
  Work receive(at::Tensor tensor, int peer, int tag = 0, const CallOptions& call = {}) const;
  /// The same from any other rank; `on_source` is told which, before the Work ends, on another thread.
  Work receive_from_any(at::Tensor tensor, int tag = 0, std::function<void(int source)> on_source = {},
                        const CallOptions& call = {}) const;
  /// A barrier that stands in no order with other calls, and tells who is missing: rank 0 throws a TimeoutError that
  /// names the first rank that did not come, or all of them where `wait_for_all`; the others then throw a PeerError.
  /// Blocks.
  void monitored_barrier(bool wait_for_all = false, const CallOptions& call = {}) const;
  /// Gives the group up: what is under way ends with an error, here and on the other ranks, and so does every later
  /// call. `reason` is what errors say.
  void abort(const std::string& reason) const;

  /// Every rank's bytes, by rank; they may differ in length. Blocks.
  std::vector<std::string> all_gather_object(const std::string& object, const CallOptions& call = {}) const;
  /// The bytes of `root`. Blocks.
  std::string broadcast_object(const std::string& object, int root = 0, const CallOptions& call = {}) const;

  /// A group of the ranks that gave the same `color`, ordered by (key, rank); nullopt for a negative color. Every rank
  /// must call it.
  std::optional<Communicator> split(int color, int key = 0, const CallOptions& call = {}) const;
  /// A group of `ranks` (of this one, in their new order, this rank among them), which alone must call it, with a
  /// `name` that no other group made here has had. Nothing is asked of the other ranks.
  Communicator subgroup(const std::vector<int>& ranks, const std::string& name) const;
  /// The same ranks on a channel of its own, whose operations are ordered independently. Every rank must call it.
  Communicator duplicate(const std::string& name) const;
  /// The channel that all who ask by this name share: the first call makes it (every rank must call it then), and it
  /// lives as long as this one. For what there may be many of, such as layers, whose operations come in one order on
  /// all ranks anyway.
  Communicator get_or_duplicate(const std::string& name) const;

  // For gradient rounds: no fingerprint (the plan was compared beforehand), started on one thread and completed on
  // another. All ranks must start the same operations in the same order.

  /// Whether start_all_reduce() takes tensors on this device.
  bool supports_device(at::Device device) const;
  /// Memory in which gradients are exchanged cheapest: `bytes` of uint8 on `device`, 64-byte aligned. The mapping
  /// belongs to the tensor's storage. Every rank must call it, with the same size. UsageError unless
  /// supports_device(device).
  at::Tensor allocate(std::int64_t bytes, at::Device device = at::kCPU) const;
  /// Starts summing `flat` (contiguous, same size and dtype on all ranks; memory from allocate() for the best speed, on
  /// a device only that) over all ranks. With a `codec` (equal on all ranks) fp32 travels encoded between nodes; other
  /// dtypes, and what is on a device, travel as they are. See PendingAllReduce for how it is completed.
  std::unique_ptr<comm::PendingAllReduce> start_all_reduce(
      at::Tensor flat, const std::shared_ptr<const WireCodec>& codec = nullptr) const;
  /// Starts exchanging a few bytes (same length on all ranks). See PendingAllGather.
  std::unique_ptr<comm::PendingAllGather> start_small_all_gather(std::span<const std::byte> block) const;
  /// Starts gathering bytes that may differ in length between ranks. See PendingAllGatherV.
  std::unique_ptr<comm::PendingAllGatherV> start_all_gather_v(std::vector<std::byte> block) const;
  /// Runs `task` on this channel's own thread, after what was submitted before it.
  Work submit(std::function<void()> task) const;

  /// Whether an operation has failed, so that every later call throws.
  bool failed() const;
  /// For the flight record (`tutti inspect`): later operations of this process belong to this step of training.
  void set_step(std::int64_t step) const;

 private:
  explicit Communicator(std::shared_ptr<comm::OperationQueue> queue);
  friend Communicator make_communicator(std::shared_ptr<comm::Backend> backend, const CommunicatorOptions& options,
                                        std::string name, comm::Services services);

  std::shared_ptr<comm::OperationQueue> queue_;
};

}  // namespace tutti
