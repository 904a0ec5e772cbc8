#pragma once
// The interface of the part of a communicator that runs its collectives.
//
// The communicator has checked all tensors: dense, contiguous, detached, of matching sizes, in CPU memory
// (start_all_reduce also takes tensors on devices for which supports_device() is true). Blocking methods run on the
// communicator's queue thread.
#include <ATen/core/TensorBody.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/backend/operation.h"
#include "comm/backend/transfer_error.h"
#include "tutti/comm/reduce_op.h"
#include "tutti/comm/topology.h"
#include "tutti/comm/wire_codec.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const std::string& name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const Topology& topology() const = 0;

  // The start methods never block and may be called while other operations are in flight.
  /// `flat` must be fp32 unless `codec` is null.
  virtual std::unique_ptr<PendingAllReduce> start_all_reduce(const Operation& operation, const at::Tensor& flat,
                                                             const std::shared_ptr<const WireCodec>& codec) = 0;
  virtual std::unique_ptr<PendingAllGather> start_small_all_gather(const Operation& operation,
                                                                   std::span<const std::byte> input) = 0;

  // The following collectives block and throw TransferError.
  virtual void all_reduce(const Operation& operation, const at::Tensor& flat, ReduceOp op) = 0;
  virtual void all_gather(const Operation& operation, const at::Tensor& output, const at::Tensor& input) = 0;
  virtual void reduce_scatter(const Operation& operation, const at::Tensor& output, const at::Tensor& input,
                              ReduceOp op) = 0;
  virtual void all_to_all(const Operation& operation, const at::Tensor& output, const at::Tensor& input) = 0;
  virtual void broadcast(const Operation& operation, const at::Tensor& tensor, int root) = 0;
  /// Sends inputs[r] to rank r and receives rank r's part into outputs[r]. Both lists have one entry per rank. An entry
  /// may be empty; its length is equal on sender and receiver. `longest` is the length of the longest entry of any
  /// rank, in bytes.
  virtual void all_to_all_v(const Operation& operation, const std::vector<at::Tensor>& outputs,
                            const std::vector<at::Tensor>& inputs, std::size_t longest) = 0;

  /// The largest payload in bytes that a small all-gather carries at no extra cost. Equal on all ranks.
  virtual std::size_t inline_payload_bytes() const { return 0; }
  /// The number of times to poll a small all-gather before blocking.
  virtual int spin_count() const { return 0; }

  /// Establishes now the connections that would be established by the first message. Every rank must call it. Throws
  /// PeerError.
  virtual void connect() {}
  /// Gathers every rank's `input`, ordered by rank, while a backend is set up. Blocks. Every rank must call it with the
  /// same number of bytes.
  virtual std::vector<std::byte> bootstrap_all_gather(const Operation& operation, std::span<const std::byte> input);

  /// See Communicator::allocate.
  virtual at::Tensor allocate(const Operation& operation, std::int64_t bytes) = 0;
  /// True if start_all_reduce() also takes tensors on devices of this type.
  virtual bool supports_device(at::DeviceType) const { return false; }
  /// Like allocate(), on a device for which supports_device() is true. Every rank must call it. Throws PeerError.
  virtual at::Tensor allocate_on_device(const Operation&, at::Device device, std::int64_t) {
    throw UsageError("this backend sums in CPU memory, not on " + device.str());
  }
  /// See Transport::split.
  virtual std::shared_ptr<Backend> split(const std::vector<int>& members, const std::string& name,
                                         std::chrono::milliseconds timeout) = 0;
  /// A new group of all ranks. Every rank must call it, in the same order relative to other blocking calls: the ranks
  /// may exchange addresses through this backend.
  virtual std::shared_ptr<Backend> duplicate(const std::string& name, std::chrono::milliseconds timeout);

  /// The board on which ranks publish their failure reports; null if the group has one rank.
  virtual std::shared_ptr<FailureBoard> failure_board() = 0;
  /// True if the peer is known to have exited or to have closed the communicator.
  virtual bool peer_exited(int) const { return false; }
  /// See Transport::throw_if_heartbeat_lost.
  virtual void throw_if_heartbeat_lost() const {}
  /// Publishes whether this rank is blocked. Returns false if some peer is known not to be blocked.
  virtual bool set_blocked(bool) noexcept { return true; }
  /// See Transport::close.
  virtual void close() noexcept = 0;
};

/// Selects the backend for a new group of ranks that a point-to-point backend (`messages`) connects. `name` must be
/// unused. The caller passes it in, because only select_backend.h knows all backends.
using SelectBackend = std::function<std::shared_ptr<Backend>(std::shared_ptr<Backend> messages, const std::string& name,
                                                             std::chrono::milliseconds timeout)>;

/// The topology of the group whose rank r is rank members[r] of `all`, as seen by `rank` of the group.
Topology topology_of(const Topology& all, const std::vector<int>& members, int rank);
/// The topology as seen by `rank`, with rank r on node node_of_rank[r].
Topology make_topology(std::vector<int> node_of_rank, int rank);

}  // namespace tutti::comm
