#pragma once
// A Communicator: a group of ranks, and the collectives and point-to-point messages among them.
//
// Every rank of the group must call every collective, in the same order, with tensors of the same shape and dtype.
// Ranks compare call signatures (operation, shape, dtype, reduction, name) before they exchange data: a mismatch throws
// MismatchError on every rank. Every call has a timeout. A rank that does not enter the call in time causes a
// TimeoutError. A rank that exited or disconnected causes a PeerError. Both errors name the rank and the operation.
// After a TimeoutError or PeerError of a collective the Communicator is aborted: every later call throws. The buffers
// of operations in flight stay allocated until the transfers end.
//
// A Communicator is a small value: copies share one sequence of operations, which run in the order of the calls. Use
// duplicate() for an independent sequence. Several threads may call the methods if the order of calls is the same on
// all ranks. A process that fork() has made must not call the Communicators of its parent, whose threads it does not
// have.
#include <ATen/core/TensorBody.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/call_options.h"
#include "tutti/comm/communicator_options.h"
#include "tutti/comm/reduce_op.h"
#include "tutti/comm/topology.h"
#include "tutti/comm/work.h"
#include "tutti/core/environment.h"

namespace c10d {
class Store;
}

namespace tutti {

namespace comm {
class Backend;
class GradientCommunicator;
class OperationQueue;
struct Services;
}  // namespace comm

/// A handle to a group of ranks. Copies share one sequence of operations.
class Communicator {
 public:
  /// A group of one rank, without a network: every collective is the identity.
  Communicator();

  /// Joins the job that `environment` describes. Every rank must call it. Throws UsageError (unknown backend, port in
  /// use) and TimeoutError (the coordinator is unreachable, or the named ranks did not join).
  static Communicator connect(const Environment& environment, const CommunicatorOptions& options = {});
  /// Joins the group of `size` ranks that share `store` (any c10d store), as rank `rank`. Every rank must call it.
  /// Ranks are on one node if they share the machine and its PID and network namespaces. Several groups may connect
  /// over one store if all ranks connect them in the same order; otherwise give each group a c10d::PrefixStore of its
  /// own. The group opens its own connections to the store. Throws UsageError (ranks disagree on size or backend),
  /// TimeoutError (the named ranks did not join) and PeerError.
  static Communicator connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                              const CommunicatorOptions& options = {});

  /// This rank's number in the group, 0 to size() - 1.
  int rank() const;
  /// The number of ranks in the group.
  int size() const;
  /// The node of each rank of the group.
  const Topology& topology() const;
  /// The name of the backend: "tcp", "encrypted tcp", "mpi", "shared memory + tcp", "single" and so on.
  const std::string& backend_name() const;

  // Collectives. Every rank must call them. The caller must not access the tensors until the Work has completed, nor
  // pass them to another call: small tensors are copied when the call begins.
  // - Tensors must be dense, in CPU memory or on a device of this process.
  // - All tensors of a call must be on one device, of the same type on all ranks.
  // - Elements of an output must not share memory, as they do after expand() or unfold().
  //
  // On a device an operation runs after the work that is queued on the calling thread's current stream. Work::wait()
  // makes the current stream of its thread wait for the result; the host does not wait for the device. A backend for
  // the device runs the collective there. All other backends use copies in pinned memory.

  /// Reduces `tensor` over all ranks, in place. Every rank gets the same bits. In CPU memory the order of additions
  /// depends on the number of ranks alone, for 5 ranks ((0 + 1) + (2 + 3)) + 4. `mean` divides the sum by size() and
  /// needs a floating dtype.
  Work all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::sum, const CallOptions& call = {}) const;
  /// Writes every rank's `input` (n elements) to `output` (size() * n elements), in rank order.
  Work all_gather(at::Tensor output, at::Tensor input, const CallOptions& call = {}) const;
  /// Reduces `input` (size() * n elements) over all ranks and writes this rank's part of the result to `output` (n
  /// elements).
  Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op = ReduceOp::sum,
                      const CallOptions& call = {}) const;
  /// Sends part r of `input` to rank r and receives part r of `output` from it. Both hold size() * n elements.
  Work all_to_all(at::Tensor output, at::Tensor input, const CallOptions& call = {}) const;
  /// Sends `inputs[r]` to rank r and receives `outputs[r]` from it. Parts may differ in size and may be empty. A part
  /// must have the same size on its sender and its receiver: MismatchError otherwise. All parts have one dtype, the
  /// same on all ranks. Throws UsageError if two outputs are the same memory; so does gather().
  Work all_to_all_v(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs,
                    const CallOptions& call = {}) const;
  /// Writes the `input` of rank r to `outputs[r]` of the root. Other ranks pass no outputs.
  Work gather(const std::vector<at::Tensor>& outputs, at::Tensor input, int root = 0,
              const CallOptions& call = {}) const;
  /// Writes `inputs[r]` of the root to the `output` of rank r. Other ranks pass no inputs.
  Work scatter(at::Tensor output, const std::vector<at::Tensor>& inputs, int root = 0,
               const CallOptions& call = {}) const;
  /// Reduces `tensor` over all ranks into the root's `tensor`, to the same bits as all_reduce(), except products of
  /// complex numbers. The tensors of other ranks do not change.
  Work reduce(at::Tensor tensor, int root = 0, ReduceOp op = ReduceOp::sum, const CallOptions& call = {}) const;
  /// Copies the root's `tensor` to the `tensor` of every rank.
  Work broadcast(at::Tensor tensor, int root = 0, const CallOptions& call = {}) const;
  /// Completes when every rank has called it.
  Work barrier(const CallOptions& call = {}) const;

  // Point-to-point messages. Sender and receiver may use different types of devices. Messages and collectives have no
  // order relative to one another and do not wait for one another. The first message between two ranks connects them.
  // Continuations run on the thread tutti-tcp, or on the thread that posts the message. A Work fails with TimeoutError
  // at its timeout, or when the peer is stopped or unreachable for the heartbeat timeout, and with PeerError when the
  // peer exits. Both name the peer. It fails with PeerError when the coordinator is lost. The group stays usable.

  /// Sends `tensor` to rank `peer`. Messages with the same `tag` (>= 0) arrive in the order of sends. Completes when
  /// the operating system has accepted the bytes. The peer need not have called receive(), unless it already holds 1
  /// GiB of messages without receives; each counts its bytes and 256 more. Throws UsageError if `peer` is not another
  /// rank of the group. The Work may fail with MismatchError if the receive expects another number of bytes.
  Work send(at::Tensor tensor, int peer, int tag = 0, const CallOptions& call = {}) const;
  /// Receives the next message of rank `peer` with this `tag` into `tensor`. Fails with MismatchError if the message
  /// has another number of bytes, and drops the message. Dtypes are not compared: a message of float fills a tensor of
  /// int with the bits of the floats.
  Work receive(at::Tensor tensor, int peer, int tag = 0, const CallOptions& call = {}) const;
  /// Receives from any other rank. Calls `on_source` with that rank before the Work completes, on the thread that runs
  /// continuations.
  Work receive_from_any(at::Tensor tensor, int tag = 0, std::function<void(int source)> on_source = {},
                        const CallOptions& call = {}) const;
  /// A barrier that has no order relative to other calls. Blocks. Every rank must call it. If ranks do not enter before
  /// the timeout, rank 0 throws a TimeoutError that names the first of them, or all of them if `wait_for_all`. The
  /// other ranks then throw a PeerError.
  void monitored_barrier(bool wait_for_all = false, const CallOptions& call = {}) const;
  /// Aborts the group: operations in flight and later calls end with an error, on this rank and on the others. One rank
  /// suffices. `reason` becomes the text of the error.
  void abort(const std::string& reason) const;

  /// Returns every rank's `object`, by rank. Objects may differ in length. Blocks. Every rank must call it.
  std::vector<std::string> all_gather_object(const std::string& object, const CallOptions& call = {}) const;
  /// Returns the `object` of `root`. Blocks. Every rank must call it.
  std::string broadcast_object(const std::string& object, int root = 0, const CallOptions& call = {}) const;

  /// Returns a group of the ranks that passed the same `color`, ordered by (key, rank); nullopt for a negative color.
  /// Every rank must call it.
  std::optional<Communicator> split(int color, int key = 0, const CallOptions& call = {}) const;
  /// Returns a group of `ranks` (ranks of this group, in their new order, with the calling rank among them). Each of
  /// these ranks must call it with this list and `name`; the others need not. `name` must be new among the subgroups of
  /// each of them. A rank that waits for another one logs it after 10 s. Throws UsageError, PeerError, and TimeoutError
  /// if ranks do not call it within CommunicatorOptions::timeout.
  Communicator subgroup(const std::vector<int>& ranks, const std::string& name) const;
  /// Returns a group of the same ranks with its own sequence of operations. Every rank must call it.
  Communicator duplicate(const std::string& name) const;
  /// Returns the duplicate called `name`, for callers that share one sequence of operations, such as the layers of a
  /// model. The first call makes the duplicate; every rank must make that call. The duplicate exists as long as this
  /// communicator.
  Communicator get_or_duplicate(const std::string& name) const;

  /// Whether the communicator is aborted, so that every later call throws.
  bool failed() const;
  /// Sets the training step that the flight record (`tutti inspect`) shows for later operations of this process.
  void set_step(std::int64_t step) const;

 private:
  explicit Communicator(std::shared_ptr<comm::OperationQueue> queue);
  friend class comm::GradientCommunicator;
  friend Communicator make_communicator(std::shared_ptr<comm::Backend> backend, const CommunicatorOptions& options,
                                        std::string name, comm::Services services);

  std::shared_ptr<comm::OperationQueue> queue_;
};

}  // namespace tutti
