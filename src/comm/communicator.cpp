#include "tutti/comm/communicator.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/channel.h"
#include "comm/describe_call.h"
#include "comm/engine/describe.h"
#include "comm/make_communicator.h"
#include "comm/single_engine.h"
#include "comm/sums/combine.h"
#include "comm/tensor_checks.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/inner_call.h"

namespace tutti {
namespace {

using comm::FlatTensor;
using comm::Operation;
using Answers = comm::Channel::Answers;

using comm::bytes_of;
using comm::describe_op;
using comm::require_rank;

}  // namespace

Communicator make_communicator(std::shared_ptr<comm::Engine> engine, const CommunicatorOptions& options,
                               std::string name, comm::ChannelParts parts) {
  return Communicator(
      std::make_shared<comm::Channel>(std::move(engine), options.timeout, std::move(name), std::move(parts)));
}

Communicator::Communicator()
    : Communicator(std::make_shared<comm::Channel>(comm::make_single_engine(), CommunicatorOptions().timeout, "",
                                                   comm::ChannelParts{})) {}

Communicator::Communicator(std::shared_ptr<comm::Channel> channel) : channel_(std::move(channel)) {}

int Communicator::rank() const {
  return channel_->engine().rank();
}
int Communicator::size() const {
  return channel_->engine().size();
}
const NodeLayout& Communicator::layout() const {
  return channel_->engine().layout();
}
const std::string& Communicator::engine_name() const {
  return channel_->engine().name();
}
bool Communicator::poisoned() const {
  return channel_->poisoned();
}
void Communicator::note_step(std::int64_t step) const {
  if (const auto& recorder = channel_->parts().recorder) recorder->set_step(step);
}

Work Communicator::all_reduce(at::Tensor tensor, ReduceOp op, const CallOptions& call) const {
  auto flat = FlatTensor::to_write("all_reduce", tensor);
  comm::require_combinable("all_reduce", tensor, op);
  const auto arguments = comm::describe_tensor(tensor) + ", " + describe_op(op);
  if (tensor.nbytes() <= channel_->payload_bytes()) {
    const auto combine = [flat, op](const Operation&, const Answers& answers) {
      comm::combine(answers.payloads, static_cast<std::byte*>(flat.memory().data_ptr()),
                    static_cast<std::size_t>(flat.memory().numel()), flat.memory().scalar_type(),
                    comm::combination_of(op, static_cast<int>(answers.payloads.size())));
      flat.write_back();
    };
    return Work(channel_->call("all_reduce", arguments, call, combine, {.payload = bytes_of(flat.memory())}));
  }
  return Work(channel_->call("all_reduce", arguments, call,
                             [channel = channel_.get(), flat, op](const Operation& operation, const Answers&) {
                               channel->engine().all_reduce(operation, flat.memory(), op);
                               flat.write_back();
                             }));
}

Work Communicator::all_gather(at::Tensor output, at::Tensor input, const CallOptions& call) const {
  auto to = FlatTensor::to_write("all_gather", output);
  auto from = FlatTensor::to_read("all_gather", input);
  comm::require_parts("all_gather", "output", output, "input", input, size());
  if (input.nbytes() <= channel_->payload_bytes()) {
    const auto copy = [to, bytes = input.nbytes()](const Operation&, const Answers& answers) {
      auto* part = static_cast<std::byte*>(to.memory().data_ptr());
      for (const std::byte* payload : answers.payloads) part = std::copy_n(payload, bytes, part);
      to.write_back();
    };
    return Work(
        channel_->call("all_gather", comm::describe_tensor(input), call, copy, {.payload = bytes_of(from.memory())}));
  }
  return Work(channel_->call("all_gather", comm::describe_tensor(input), call,
                             [channel = channel_.get(), to, from](const Operation& operation, const Answers&) {
                               channel->engine().all_gather(operation, to.memory(), from.memory());
                               to.write_back();
                             }));
}

Work Communicator::reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, const CallOptions& call) const {
  auto to = FlatTensor::to_write("reduce_scatter", output);
  auto from = FlatTensor::to_read("reduce_scatter", input);
  comm::require_combinable("reduce_scatter", input, op);
  comm::require_parts("reduce_scatter", "input", input, "output", output, size());
  const auto arguments = comm::describe_tensor(input) + ", " + describe_op(op);
  return Work(channel_->call("reduce_scatter", arguments, call,
                             [channel = channel_.get(), to, from, op](const Operation& operation, const Answers&) {
                               channel->engine().reduce_scatter(operation, to.memory(), from.memory(), op);
                               to.write_back();
                             }));
}

Work Communicator::all_to_all(at::Tensor output, at::Tensor input, const CallOptions& call) const {
  auto to = FlatTensor::to_write("all_to_all", output);
  auto from = FlatTensor::to_read("all_to_all", input);
  comm::require_equal_sizes("all_to_all", output, input, size());
  return Work(channel_->call("all_to_all", comm::describe_tensor(input), call,
                             [channel = channel_.get(), to, from](const Operation& operation, const Answers&) {
                               channel->engine().all_to_all(operation, to.memory(), from.memory());
                               to.write_back();
                             }));
}

Work Communicator::broadcast(at::Tensor tensor, int root, const CallOptions& call) const {
  require_rank(root, size(), "broadcast");
  auto flat = FlatTensor::to_write("broadcast", tensor);
  const auto arguments = comm::describe_tensor(tensor) + ", root " + std::to_string(root);
  if (tensor.nbytes() <= channel_->payload_bytes()) {
    const auto copy = [flat, root, here = rank()](const Operation&, const Answers& answers) {
      if (here == root) return;
      std::copy_n(answers.payloads[static_cast<std::size_t>(root)], flat.memory().nbytes(),
                  static_cast<std::byte*>(flat.memory().data_ptr()));
      flat.write_back();
    };
    return Work(channel_->call("broadcast", arguments, call, copy, {.payload = bytes_of(flat.memory())}));
  }
  return Work(channel_->call("broadcast", arguments, call,
                             [channel = channel_.get(), flat, root](const Operation& operation, const Answers&) {
                               channel->engine().broadcast(operation, flat.memory(), root);
                               if (channel->engine().rank() != root) flat.write_back();
                             }));
}

Work Communicator::barrier(const CallOptions& call) const {
  // Comparing the fingerprints already takes a message from every rank to every rank.
  return Work(channel_->call("barrier", "", call, [](const Operation&, const Answers&) {},
                             {.payload = std::span<const std::byte>()}));
}

std::vector<std::string> Communicator::all_gather_object(const std::string& object, const CallOptions& call) const {
  std::vector<std::string> objects;
  const auto gather = [&](const Operation& operation, const Answers& answers) {
    const std::uint64_t longest = comm::longest_of(answers.by_rank);
    const auto width = static_cast<std::int64_t>(longest);
    auto mine = at::empty({width}, at::kByte);
    auto all = at::empty({width * size()}, at::kByte);
    std::ranges::copy(object, static_cast<char*>(mine.data_ptr()));
    channel_->engine().all_gather(operation, all, mine);
    for (std::size_t rank = 0; rank < answers.by_rank.size(); ++rank) {
      objects.emplace_back(static_cast<const char*>(all.data_ptr()) + rank * longest, answers.by_rank[rank].length);
    }
  };
  channel_->call("all_gather_object", "", call, gather, {.length = object.size()})->wait();
  return objects;
}

std::string Communicator::broadcast_object(const std::string& object, int root, const CallOptions& call) const {
  require_rank(root, size(), "broadcast_object");
  std::string result = object;
  const auto broadcast_bytes = [&](const Operation& operation, const Answers& answers) {
    comm::longest_of(answers.by_rank);  // throws for a length that cannot be
    const auto length = answers.by_rank[static_cast<std::size_t>(root)].length;
    auto bytes = at::empty({static_cast<std::int64_t>(length)}, at::kByte);
    if (rank() == root) std::ranges::copy(object, static_cast<char*>(bytes.data_ptr()));
    channel_->engine().broadcast(operation, bytes, root);
    result.assign(static_cast<const char*>(bytes.data_ptr()), length);
  };
  const auto arguments = "root " + std::to_string(root);
  channel_->call("broadcast_object", arguments, call, broadcast_bytes, {.length = object.size()})->wait();
  return result;
}

std::optional<Communicator> Communicator::split(int color, int key, const CallOptions& call) const {
  // All ranks count, also those that get no group: names must stay equal.
  const auto name = channel_->next_child_name("split");
  std::optional<Communicator> group;
  const auto connect_group = [&](const Operation& operation, const Answers&) {
    auto wish = at::empty({2}, at::kInt);
    auto wishes = at::empty({size(), 2}, at::kInt);
    wish.data_ptr<int>()[0] = color;
    wish.data_ptr<int>()[1] = key;
    channel_->engine().all_gather(operation, wishes, wish);
    if (color < 0) return;

    const int* const all = wishes.data_ptr<int>();  // of each rank color and key
    std::vector<int> members;
    for (int other = 0; other < size(); ++other) {
      if (all[2 * other] == color) members.push_back(other);
    }
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return all[2 * a + 1] < all[2 * b + 1]; });
    const auto group_name = name + "-" + std::to_string(color);
    auto engine = members.size() == 1 ? comm::make_single_engine()
                                      : channel_->engine().connect_again(members, group_name, operation.timeout);
    engine->connect();  // here, where all its ranks are
    group = make_communicator(std::move(engine), {.timeout = channel_->timeout()}, group_name,
                              channel_->parts().of(members, group_name));
  };
  channel_->call("split", "", call, connect_group)->wait();
  // Nobody leaves while others may still need it to meet one another: rank 0 may hold the store.
  barrier({.timeout = call.timeout, .name = "split", .where = call.where}).wait();
  return group;
}

Communicator Communicator::subgroup(const std::vector<int>& ranks, const std::string& name) const {
  std::vector<int> sorted = ranks;
  std::ranges::sort(sorted);
  const bool repeated = std::ranges::adjacent_find(sorted) != sorted.end();
  const bool outside = sorted.empty() || sorted.front() < 0 || sorted.back() >= size();
  if (repeated || outside || !std::ranges::binary_search(sorted, rank())) {
    throw UsageError("subgroup: the ranks must be ranks of this group of " + std::to_string(size()) +
                     ", each once, and rank " + std::to_string(rank()) + ", which calls, among them.");
  }
  const auto full_name = channel_->name() + "/sub-" + name;
  std::optional<Communicator> group;
  // On this channel's own thread: engines of groups are connected where the engine's other calls run.
  channel_
      ->submit([&] {
        auto engine = comm::make_single_engine();
        try {
          if (ranks.size() > 1) engine = channel_->engine().connect_again(ranks, full_name, channel_->timeout());
        } catch (const comm::TransferError& error) {
          throw PeerFailure("subgroup '" + name + "': no answer from " + comm::describe_ranks(error.peers()) +
                                " of it while connecting (" + error.what() + ")",
                            {});
        }
        group = make_communicator(std::move(engine), {.timeout = channel_->timeout()}, full_name,
                                  channel_->parts().of(ranks, full_name));
      })
      ->wait();
  return *group;
}

Communicator Communicator::duplicate(const std::string& name) const {
  const auto full_name = channel_->next_child_name(name);
  std::optional<Communicator> copy;
  const auto connect_copy = [&](const Operation& operation, const Answers&) {
    std::vector<int> everyone(static_cast<std::size_t>(size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    auto engine = channel_->engine().duplicate(full_name, operation.timeout);
    engine->connect();  // here, where all ranks are
    copy = make_communicator(std::move(engine), {.timeout = channel_->timeout()}, full_name,
                             channel_->parts().of(everyone, full_name));
  };
  channel_->call("duplicate", "", comm::inner_call(name), connect_copy)->wait();
  return *copy;
}

Communicator Communicator::shared_duplicate(const std::string& name) const {
  return Communicator(channel_->shared_child(name, [&] { return duplicate(name).channel_; }));
}

bool Communicator::sums_on(at::Device device) const {
  return device.is_cpu() || channel_->engine().sums_on(device.type());
}

at::Tensor Communicator::allocate(std::int64_t bytes, at::Device device) const {
  if (bytes < 0) throw UsageError("allocate: " + std::to_string(bytes) + " bytes.");
  if (!sums_on(device)) {
    throw UsageError("allocate: the engine " + engine_name() + " sums in CPU memory, not on " + device.str() + ".");
  }
  return channel_->allocate(bytes, device);
}

std::unique_ptr<comm::PendingSum> Communicator::start_sum(at::Tensor flat,
                                                          const std::shared_ptr<const WireCodec>& codec) const {
  comm::require_dense("start_sum", flat);
  if (!sums_on(flat.device())) comm::require_on_cpu("start_sum", flat);
  comm::require_combinable("start_sum", flat, ReduceOp::sum);
  if (!flat.is_contiguous()) throw UsageError("start_sum: the tensor must be contiguous.");
  return channel_->start_sum(flat.detach(), flat.scalar_type() == at::kFloat ? codec : nullptr);
}

std::unique_ptr<comm::PendingExchange> Communicator::start_exchange(std::span<const std::byte> mine) const {
  return channel_->start_exchange(mine);
}

std::unique_ptr<comm::PendingGather> Communicator::start_gather(std::vector<std::byte> mine) const {
  return channel_->start_gather(std::move(mine));
}

Work Communicator::submit(std::function<void()> task) const {
  return Work(channel_->submit(std::move(task)));
}

}  // namespace tutti
