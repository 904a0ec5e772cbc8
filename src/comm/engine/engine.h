#pragma once
// What carries out the collectives of a channel. Tensors that arrive here were checked: dense, contiguous, on the CPU
// (start_sum: also where sums_on() says), detached, of fitting sizes. Blocking methods run on the channel's thread.
#include <ATen/core/TensorBody.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/engine/operation.h"
#include "comm/engine/transfer.h"
#include "tutti/comm/communicator.h"
#include "tutti/comm/node_layout.h"
#include "tutti/comm/wire_codec.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::comm {

class Engine {
 public:
  virtual ~Engine() = default;
  virtual const std::string& name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const NodeLayout& layout() const = 0;

  // Never block, and may be called while other operations are under way.
  /// `codec` is null, or `flat` holds fp32.
  virtual std::unique_ptr<PendingSum> start_sum(const Operation& operation, const at::Tensor& flat,
                                                const std::shared_ptr<const WireCodec>& codec) = 0;
  virtual std::unique_ptr<PendingExchange> start_exchange(const Operation& operation,
                                                          std::span<const std::byte> mine) = 0;

  // Block; throw TransferError.
  virtual void all_reduce(const Operation& operation, const at::Tensor& flat, ReduceOp op) = 0;
  virtual void all_gather(const Operation& operation, const at::Tensor& output, const at::Tensor& input) = 0;
  virtual void reduce_scatter(const Operation& operation, const at::Tensor& output, const at::Tensor& input,
                              ReduceOp op) = 0;
  virtual void all_to_all(const Operation& operation, const at::Tensor& output, const at::Tensor& input) = 0;
  virtual void broadcast(const Operation& operation, const at::Tensor& tensor, int root) = 0;
  /// Part r of `inputs` becomes, on rank r, this rank's part of `outputs`. Both have a part for each rank, which may be
  /// empty and is as long here as there; `longest` is the number of bytes of the longest one of any rank.
  virtual void exchange_parts(const Operation& operation, const std::vector<at::Tensor>& outputs,
                              const std::vector<at::Tensor>& inputs, std::size_t longest) = 0;

  /// How long an exchange may be to cost no more than a short one; equal on all ranks.
  virtual std::size_t cheap_exchange_bytes() const { return 0; }
  /// How often it is worth looking whether an exchange is ready before a thread goes to sleep over it.
  virtual int looks_before_sleep() const { return 0; }

  /// Connects now what would be connected with the first message. Every rank must call it. Throws PeerFailure.
  virtual void connect() {}
  /// Every rank's `mine`, by rank, for setting something up. Blocks. Every rank must call it, with as many bytes.
  virtual std::vector<std::byte> meet(const Operation& operation, std::span<const std::byte> mine);

  /// See Communicator::allocate.
  virtual at::Tensor allocate(const Operation& operation, std::int64_t bytes) = 0;
  /// Whether start_sum() takes tensors on devices of this type too.
  virtual bool sums_on(at::DeviceType) const { return false; }
  /// The same as allocate(), on a device where sums_on() says so. Every rank must call it. Throws PeerFailure.
  virtual at::Tensor allocate_on(const Operation&, at::Device device, std::int64_t) {
    throw UsageError("this engine sums in CPU memory, not on " + device.str());
  }
  /// See Transport::connect_again.
  virtual std::shared_ptr<Engine> connect_again(const std::vector<int>& members, const std::string& name,
                                                std::chrono::milliseconds timeout) = 0;
  /// A group of all ranks. Every rank must call it, in the order of its other blocking calls: the ranks may meet by
  /// this engine.
  virtual std::shared_ptr<Engine> duplicate(const std::string& name, std::chrono::milliseconds timeout);

  /// Where ranks leave word about a failure; null where no other rank is.
  virtual std::shared_ptr<Bulletin> bulletin() = 0;
  /// Whether nothing will come from `rank` any more, for all that can be seen here.
  virtual bool is_gone(int) const { return false; }
  /// See Transport::throw_if_silent.
  virtual void throw_if_silent() const {}
  /// Tells the others whether this rank waits for what may never come. Returns whether all of them say so of
  /// themselves, or nothing is known here.
  virtual bool stands_still(bool) noexcept { return true; }
  /// See Transport::close.
  virtual void close() noexcept = 0;
};

/// What picks the engine for ranks that have messages, and a name that is new: a group of ranks of an engine gets its
/// own so. Handed in from above, where all engines are known (choose_engine.h).
using ChooseEngine = std::function<std::shared_ptr<Engine>(std::shared_ptr<Engine> messages, const std::string& name,
                                                           std::chrono::milliseconds timeout)>;

/// The layout of a group of some ranks of `all`.
NodeLayout layout_of(const NodeLayout& all, const std::vector<int>& members, int rank);
/// The layout seen by `rank` where rank r lives on node node_of_rank[r].
NodeLayout make_layout(std::vector<int> node_of_rank, int rank);

}  // namespace tutti::comm
