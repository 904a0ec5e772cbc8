#pragma once
// What carries out the collectives of a channel. Tensors that arrive here were checked: dense, contiguous, on the CPU
// (start_all_reduce: also where supports_device() says), detached, of fitting sizes. Blocking methods run on the
// channel's thread.
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
#include "tutti/comm/communicator.h"
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

  // Never block, and may be called while other operations are under way.
  /// `codec` is null, or `flat` holds fp32.
  virtual std::unique_ptr<PendingAllReduce> start_all_reduce(const Operation& operation, const at::Tensor& flat,
                                                             const std::shared_ptr<const WireCodec>& codec) = 0;
  virtual std::unique_ptr<PendingAllGather> start_small_all_gather(const Operation& operation,
                                                                   std::span<const std::byte> input) = 0;

  // Block; throw TransferError.
  virtual void all_reduce(const Operation& operation, const at::Tensor& flat, ReduceOp op) = 0;
  virtual void all_gather(const Operation& operation, const at::Tensor& output, const at::Tensor& input) = 0;
  virtual void reduce_scatter(const Operation& operation, const at::Tensor& output, const at::Tensor& input,
                              ReduceOp op) = 0;
  virtual void all_to_all(const Operation& operation, const at::Tensor& output, const at::Tensor& input) = 0;
  virtual void broadcast(const Operation& operation, const at::Tensor& tensor, int root) = 0;
  /// Part r of `inputs` becomes, on rank r, this rank's part of `outputs`. Both have a part for each rank, which may be
  /// empty and is as long here as there; `longest` is the number of bytes of the longest one of any rank.
  virtual void all_to_all_v(const Operation& operation, const std::vector<at::Tensor>& outputs,
                            const std::vector<at::Tensor>& inputs, std::size_t longest) = 0;

  /// How long an exchange may be to cost no more than a short one; equal on all ranks.
  virtual std::size_t inline_payload_bytes() const { return 0; }
  /// How often it is worth looking whether an exchange is ready before a thread goes to sleep over it.
  virtual int spin_count() const { return 0; }

  /// Connects now what would be connected with the first message. Every rank must call it. Throws PeerError.
  virtual void connect() {}
  /// Every rank's `input`, by rank, for setting something up. Blocks. Every rank must call it, with as many bytes.
  virtual std::vector<std::byte> bootstrap_all_gather(const Operation& operation, std::span<const std::byte> input);

  /// See Communicator::allocate.
  virtual at::Tensor allocate(const Operation& operation, std::int64_t bytes) = 0;
  /// Whether start_all_reduce() takes tensors on devices of this type too.
  virtual bool supports_device(at::DeviceType) const { return false; }
  /// The same as allocate(), on a device where supports_device() says so. Every rank must call it. Throws PeerError.
  virtual at::Tensor allocate_on_device(const Operation&, at::Device device, std::int64_t) {
    throw UsageError("this backend sums in CPU memory, not on " + device.str());
  }
  /// See Transport::split.
  virtual std::shared_ptr<Backend> split(const std::vector<int>& members, const std::string& name,
                                         std::chrono::milliseconds timeout) = 0;
  /// A group of all ranks. Every rank must call it, in the order of its other blocking calls: the ranks may meet by
  /// this backend.
  virtual std::shared_ptr<Backend> duplicate(const std::string& name, std::chrono::milliseconds timeout);

  /// Where ranks leave word about a failure; null where no other rank is.
  virtual std::shared_ptr<FailureBoard> failure_board() = 0;
  /// Whether nothing will come from `rank` any more, for all that can be seen here.
  virtual bool peer_exited(int) const { return false; }
  /// See Transport::throw_if_heartbeat_lost.
  virtual void throw_if_heartbeat_lost() const {}
  /// Tells the others whether this rank waits for what may never come. Returns whether all of them say so of
  /// themselves, or nothing is known here.
  virtual bool set_blocked(bool) noexcept { return true; }
  /// See Transport::close.
  virtual void close() noexcept = 0;
};

/// What picks the backend for ranks that have messages, and a name that is new: a group of ranks of a backend gets its
/// own so. Handed in from above, where all backends are known (select_backend.h).
using SelectBackend = std::function<std::shared_ptr<Backend>(std::shared_ptr<Backend> messages, const std::string& name,
                                                             std::chrono::milliseconds timeout)>;

/// The topology of a group of some ranks of `all`.
Topology topology_of(const Topology& all, const std::vector<int>& members, int rank);
/// The topology seen by `rank` where rank r lives on node node_of_rank[r].
Topology make_topology(std::vector<int> node_of_rank, int rank);

}  // namespace tutti::comm
