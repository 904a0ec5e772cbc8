#pragma once
// The interface of the part of a communicator that runs its collectives.
//
// The communicator has checked all tensors: dense, contiguous, detached, of matching sizes, in CPU memory
// (start_all_reduce also takes tensors on the devices of BackendTraits). Blocking methods run on the communicator's
// queue thread.
#include <ATen/core/TensorBody.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/backend/operation.h"
#include "comm/backend/peer_health.h"
#include "tutti/comm/reduce_op.h"
#include "tutti/comm/topology.h"
#include "tutti/comm/wire_codec.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {

/// inline_payload_bytes where messages carry small all-gathers. With equal_lengths, ranks whose calls disagree receive
/// each other's signatures. Sending 1 KiB more costs less than the exchange that a payload would need.
inline constexpr std::size_t padded_call_bytes = 1280;

struct BackendTraits {
  std::string name;                        ///< see Communicator::backend_name()
  std::size_t inline_payload_bytes = 0;    ///< a small all-gather carries such a payload at no extra cost
  bool equal_lengths = false;              ///< ranks must pass a small all-gather equally many bytes
  int spin_count = 0;                      ///< the number of times to poll a small all-gather before blocking
  bool all_devices = false;                ///< start_all_reduce() takes tensors on every device
  std::optional<at::DeviceType> device{};  ///< start_all_reduce() also takes tensors on such devices
  bool device_collectives = false;         ///< the blocking collectives also take tensors on `device`
  bool fixed_order = true;                 ///< sums on `device` add the ranks in a fixed order

  bool supports(at::DeviceType type) const { return type == at::kCPU || all_devices || type == device; }
};

class Backend : public PeerHealth {
 public:
  /// Equal on all ranks, except for spin_count.
  const BackendTraits& traits() const { return traits_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(topology_.node_of_rank.size()); }
  const Topology& topology() const { return topology_; }

  /// Throws UsageError if start_all_reduce() cannot take `flat`. Called before the operation begins.
  virtual void require_summable(const at::Tensor& /*flat*/) {}
  // The start methods never block and may be called while other operations are in flight.
  /// `flat` must be fp32 unless `codec` is null.
  virtual std::unique_ptr<PendingAllReduce> start_all_reduce(const Operation& operation, const at::Tensor& flat,
                                                             const std::shared_ptr<const WireCodec>& codec) = 0;
  virtual std::unique_ptr<PendingAllGather> start_small_all_gather(const Operation& operation,
                                                                   std::span<const std::byte> input) = 0;

  // The following collectives block and throw TransferError. With traits().device_collectives they also take tensors on
  // such a device. They run in the order of the calling thread's current stream, and return when the work is queued.
  virtual void all_reduce(const Operation& operation, const at::Tensor& flat, ReduceOp op) = 0;
  virtual void all_gather(const Operation& operation, const at::Tensor& output, const at::Tensor& input) = 0;
  virtual void reduce_scatter(const Operation& operation, const at::Tensor& output, const at::Tensor& input,
                              ReduceOp op) = 0;
  virtual void all_to_all(const Operation& operation, const at::Tensor& output, const at::Tensor& input);
  virtual void broadcast(const Operation& operation, const at::Tensor& tensor, int root) = 0;
  /// Sends inputs[r] to rank r and receives rank r's part into outputs[r]. Both lists have one entry per rank. An entry
  /// may be empty; its length is equal on sender and receiver. `longest` is the length of the longest entry of any
  /// rank, in bytes.
  virtual void all_to_all_v(const Operation& operation, const std::vector<at::Tensor>& outputs,
                            const std::vector<at::Tensor>& inputs, std::size_t longest) = 0;

  /// A round of messages, which connects the ranks that exchange messages in every round. Every rank must call it.
  /// Throws TransferError.
  void connect(std::chrono::milliseconds timeout);
  /// Gathers every rank's `input`, ordered by rank, while a backend is set up. Blocks. Every rank must call it with the
  /// same number of bytes.
  virtual std::vector<std::byte> bootstrap_all_gather(const Operation& operation, std::span<const std::byte> input);

  /// Allocates memory for start_all_reduce(), on the CPU or on a device that the traits name. Every rank must call it.
  /// See GradientCommunicator::allocate.
  virtual at::Tensor allocate(const Operation& operation, std::int64_t bytes, at::Device device) = 0;
  /// See Transport::split.
  virtual std::shared_ptr<Backend> split(const std::vector<int>& members, const std::string& name,
                                         std::chrono::milliseconds timeout) = 0;
  /// A new group of all ranks. Every rank must call it, in the same order relative to other blocking calls: the ranks
  /// may exchange addresses through this backend.
  virtual std::shared_ptr<Backend> duplicate(const std::string& name, std::chrono::milliseconds timeout);

 protected:
  Backend(BackendTraits traits, int rank, Topology topology)
      : traits_(std::move(traits)), rank_(rank), topology_(std::move(topology)) {}

 private:
  BackendTraits traits_;
  int rank_;
  Topology topology_;
};

/// Selects the backend for a new group of ranks that a point-to-point backend (`messages`) connects. `name` must be
/// unused. The caller passes it in, because only select_backend.h knows all backends.
using SelectBackend = std::function<std::shared_ptr<Backend>(std::shared_ptr<Backend> messages, const std::string& name,
                                                             std::chrono::milliseconds timeout)>;

}  // namespace tutti::comm
