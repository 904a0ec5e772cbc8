#include "comm/collective_checks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tutti/core/error.h"
#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::test {
namespace {

const std::vector<std::int64_t> sizes = {0, 1, 3, 17, 1000, 70001};
const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                            at::kLong,  at::kInt,    at::kByte};

// The tensor of `rank`, which every rank can compute. The sum of the values depends on the order of additions.
at::Tensor tensor_of_rank(int rank, std::int64_t elements, at::ScalarType dtype) {
  auto index = at::arange(elements, at::kDouble);
  auto values = at::remainder(index * 7919 + (rank + 1) * 104729, 1009);
  if (at::isFloatingType(dtype)) values = (values - 500) / 37.0 * std::pow(10.0, rank % 3);
  if (dtype == at::kByte) values = at::remainder(values, 11);
  return values.to(dtype);
}

at::Tensor combined(const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  if (op == ReduceOp::min) return at::minimum(a, b);
  if (op == ReduceOp::max) return at::maximum(a, b);
  if (op == ReduceOp::product) return at::mul(a, b);
  return at::add(a, b);
}

// The reduction over ranks [first, first + count), split at the largest power of two below `count`.
at::Tensor combined_ranks(int first, int count, std::int64_t elements, at::ScalarType dtype, at::ScalarType wide,
                          ReduceOp op) {
  if (count == 1) return tensor_of_rank(first, elements, dtype).to(wide);
  int left = 1;
  while (2 * left < count) left *= 2;
  return combined(combined_ranks(first, left, elements, dtype, wide, op),
                  combined_ranks(first + left, count - left, elements, dtype, wide, op), op);
}

// The sum as the Communicator defines it: ((0 + 1) + (2 + 3)) + 4, narrow dtypes added in fp32 and rounded once.
at::Tensor expected(int size, std::int64_t elements, at::ScalarType dtype, ReduceOp op) {
  const bool narrow = dtype == at::kHalf || dtype == at::kBFloat16;
  auto sum = combined_ranks(0, size, elements, dtype, narrow ? at::kFloat : dtype, op);
  if (op == ReduceOp::mean) sum = at::div(sum, size);
  return sum.to(dtype);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const auto left = a.contiguous();
  const auto right = b.contiguous();
  return a.nbytes() == 0 || std::memcmp(left.data_ptr(), right.data_ptr(), left.nbytes()) == 0;
}

}  // namespace

void check_all_reduce(const Communicator& communicator) {
  for (const auto dtype : dtypes) {
    for (const auto elements : sizes) {
      for (const auto op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
        if (op == ReduceOp::mean && !at::isFloatingType(dtype)) continue;
        auto tensor = tensor_of_rank(communicator.rank(), elements, dtype);
        communicator.all_reduce(tensor, op).wait();
        EXPECT_TRUE(same_bits(tensor, expected(communicator.size(), elements, dtype, op)))
            << dtype << " [" << elements << "], operation " << static_cast<int>(op);
      }
    }
  }
  // More than one chunk per shard.
  auto large = tensor_of_rank(communicator.rank(), 3'000'001, at::kFloat);
  communicator.all_reduce(large).wait();
  EXPECT_TRUE(same_bits(large, expected(communicator.size(), 3'000'001, at::kFloat, ReduceOp::sum)));
}

void check_all_gather(const Communicator& communicator) {
  for (const auto dtype : dtypes) {
    for (const auto elements : sizes) {
      auto output = at::zeros({communicator.size() * elements}, dtype);
      communicator.all_gather(output, tensor_of_rank(communicator.rank(), elements, dtype)).wait();
      for (int rank = 0; rank < communicator.size(); ++rank) {
        EXPECT_TRUE(same_bits(output.narrow(0, rank * elements, elements), tensor_of_rank(rank, elements, dtype)));
      }
    }
  }
}

void check_reduce_scatter(const Communicator& communicator) {
  for (const auto dtype : dtypes) {
    for (const auto elements : sizes) {
      const auto all = communicator.size() * elements;
      auto output = at::zeros({elements}, dtype);
      communicator.reduce_scatter(output, tensor_of_rank(communicator.rank(), all, dtype)).wait();
      const auto sum = expected(communicator.size(), all, dtype, ReduceOp::sum);
      EXPECT_TRUE(same_bits(output, sum.narrow(0, communicator.rank() * elements, elements)));
    }
  }
}

void check_all_to_all(const Communicator& communicator) {
  for (const auto elements : sizes) {
    const auto all = communicator.size() * elements;
    auto output = at::zeros({all});
    communicator.all_to_all(output, tensor_of_rank(communicator.rank(), all, at::kFloat)).wait();
    for (int rank = 0; rank < communicator.size(); ++rank) {
      const auto from = tensor_of_rank(rank, all, at::kFloat).narrow(0, communicator.rank() * elements, elements);
      EXPECT_TRUE(same_bits(output.narrow(0, rank * elements, elements), from));
    }
  }
}

/// Input and output share memory, as this rank's part of one another or anywhere else.
void check_overlapping(const Communicator& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  for (const std::int64_t elements : {1, 3000}) {
    const auto all = size * elements;
    auto exchanged = tensor_of_rank(rank, all, at::kFloat);
    const auto parts = exchanged.clone().chunk(size);
    communicator.all_to_all(exchanged, exchanged).wait();
    communicator.all_to_all_v(parts, parts).wait();
    for (int from = 0; from < size; ++from) {
      const auto sent = tensor_of_rank(from, all, at::kFloat).narrow(0, rank * elements, elements);
      EXPECT_TRUE(same_bits(exchanged.narrow(0, from * elements, elements), sent) && same_bits(parts[from], sent));
    }
    for (int part = 0; part < size; ++part) {
      auto gathered = at::zeros({all});
      const auto own = gathered.narrow(0, part * elements, elements);
      own.copy_(tensor_of_rank(rank, elements, at::kFloat));
      communicator.all_gather(gathered, own).wait();
      auto contribution = tensor_of_rank(rank, all, at::kFloat);
      const auto sum = contribution.narrow(0, part * elements, elements);
      communicator.reduce_scatter(sum, contribution).wait();
      for (int from = 0; from < size; ++from) {
        EXPECT_TRUE(
            same_bits(gathered.narrow(0, from * elements, elements), tensor_of_rank(from, elements, at::kFloat)));
      }
      EXPECT_TRUE(same_bits(sum, expected(size, all, at::kFloat, ReduceOp::sum).narrow(0, rank * elements, elements)));
    }
  }
}

void check_rooted(const Communicator& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  for (int root = 0; root < size; ++root) {
    for (const auto elements : sizes) {
      const auto mine = tensor_of_rank(rank, elements, at::kFloat);
      auto sum = mine.clone();
      communicator.reduce(sum, root).wait();
      EXPECT_TRUE(same_bits(sum, rank == root ? expected(size, elements, at::kFloat, ReduceOp::sum) : mine));

      std::vector<at::Tensor> gathered;
      std::vector<at::Tensor> scattered;
      for (int other = 0; rank == root && other < size; ++other) {
        gathered.push_back(at::zeros({elements}));
        scattered.push_back(tensor_of_rank(other, elements, at::kFloat) + 1);
      }
      communicator.gather(gathered, mine, root).wait();
      for (int other = 0; rank == root && other < size; ++other) {
        EXPECT_TRUE(same_bits(gathered[static_cast<std::size_t>(other)], tensor_of_rank(other, elements, at::kFloat)));
      }
      auto part = at::zeros({elements});
      communicator.scatter(part, scattered, root).wait();
      EXPECT_TRUE(same_bits(part, mine + 1));
    }
  }
  // Rank r sends (r + 2 * other) * more elements to rank `other`.
  for (const std::int64_t more : {0, 1, 40'000}) {
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    for (int other = 0; other < size; ++other) {
      inputs.push_back(tensor_of_rank(rank, (rank + 2 * other) * more, at::kFloat));
      outputs.push_back(at::zeros({(other + 2 * rank) * more}));
    }
    communicator.all_to_all_v(outputs, inputs).wait();
    for (int other = 0; other < size; ++other) {
      EXPECT_TRUE(same_bits(outputs[static_cast<std::size_t>(other)],
                            tensor_of_rank(other, (other + 2 * rank) * more, at::kFloat)));
    }
  }
}

void check_messages(const Communicator& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  for (const auto elements : sizes) {
    std::vector<Work> works;
    std::vector<at::Tensor> received;
    for (int peer = 0; peer < size; ++peer) {
      received.push_back(at::zeros({elements}));
      if (peer != rank) works.push_back(communicator.receive(received.back(), peer, rank));
    }
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) works.push_back(communicator.send(tensor_of_rank(rank, elements, at::kFloat), peer, peer));
    }
    for (const auto& work : works) work.wait();
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      EXPECT_TRUE(same_bits(received[static_cast<std::size_t>(peer)], tensor_of_rank(peer, elements, at::kFloat)));
    }
  }
  communicator.monitored_barrier();
}

void check_broadcast(const Communicator& communicator) {
  for (int root = 0; root < communicator.size(); ++root) {
    for (const auto elements : sizes) {
      auto tensor = tensor_of_rank(communicator.rank(), elements, at::kFloat);
      communicator.broadcast(tensor, root).wait();
      EXPECT_TRUE(same_bits(tensor, tensor_of_rank(root, elements, at::kFloat)));
    }
  }
  auto large = tensor_of_rank(communicator.rank(), 1'500'001, at::kFloat);  // several chunks
  communicator.broadcast(large, communicator.size() - 1).wait();
  EXPECT_TRUE(same_bits(large, tensor_of_rank(communicator.size() - 1, 1'500'001, at::kFloat)));
  // A parameter: a leaf that requires a gradient.
  auto parameter = tensor_of_rank(communicator.rank(), 10, at::kFloat).requires_grad_();
  const auto version = parameter._version();
  communicator.broadcast(parameter).wait();
  EXPECT_TRUE(same_bits(parameter.detach(), tensor_of_rank(0, 10, at::kFloat)));
  EXPECT_GT(parameter._version(), version);
}

void check_objects(const Communicator& communicator) {
  const auto object_of = [](int rank) {
    return std::string(static_cast<std::size_t>(rank) * 1000, static_cast<char>('a' + rank));
  };
  const auto objects = communicator.all_gather_object(object_of(communicator.rank()));
  ASSERT_EQ(objects.size(), static_cast<std::size_t>(communicator.size()));
  for (int rank = 0; rank < communicator.size(); ++rank)
    EXPECT_EQ(objects[static_cast<std::size_t>(rank)], object_of(rank));
  const int root = communicator.size() - 1;
  EXPECT_EQ(communicator.broadcast_object(object_of(communicator.rank()), root), object_of(root));
  EXPECT_EQ(communicator.broadcast_object("", 0), "");
}

void check_pending(const Communicator& communicator) {
  // Many operations are in flight at once and complete on the worker thread, as in the reducer.
  struct Round {
    std::int64_t elements;
    at::Tensor flat;
    std::unique_ptr<comm::PendingAllReduce> sum;
    std::unique_ptr<comm::PendingAllGather> exchange;
  };
  std::vector<std::shared_ptr<Round>> rounds;
  const auto rank_byte = static_cast<std::byte>(communicator.rank() + 1);
  for (const auto elements : {std::int64_t{1}, std::int64_t{100'003}, std::int64_t{0}, std::int64_t{1'200'000}}) {
    auto round = std::make_shared<Round>();
    round->elements = elements;
    round->flat = comm::GradientCommunicator(communicator).allocate(elements * 4).view(at::kFloat);
    round->flat.copy_(tensor_of_rank(communicator.rank(), elements, at::kFloat));
    round->exchange =
        comm::GradientCommunicator(communicator).start_small_all_gather(std::vector<std::byte>(24, rank_byte));
    round->sum = comm::GradientCommunicator(communicator).start_all_reduce(round->flat);
    rounds.push_back(std::move(round));
  }
  std::vector<Work> works;
  for (const auto& round : rounds) {
    works.push_back(comm::GradientCommunicator(communicator).submit([round] {
      round->sum->finish_reduce_scatter(0.25);
      round->sum->wait();
      const auto blocks = round->exchange->wait();
      for (std::size_t i = 0; i < blocks.size(); ++i) EXPECT_EQ(blocks[i], static_cast<std::byte>(i / 24 + 1));
    }));
  }
  for (const auto& work : works) work.wait();
  for (const auto& round : rounds) {
    const auto sum = at::mul(expected(communicator.size(), round->elements, at::kFloat, ReduceOp::sum), 0.25);
    EXPECT_TRUE(same_bits(round->flat, sum));
  }
  auto thrown = comm::GradientCommunicator(communicator).submit([] { throw UsageError("from the task"); });
  EXPECT_THROW(thrown.wait(), UsageError);
  EXPECT_FALSE(communicator.failed());
}

void check_layout_of_tensors(const Communicator& communicator) {
  auto matrix = tensor_of_rank(communicator.rank(), 12, at::kFloat).view({3, 4});
  auto transposed = matrix.t();
  communicator.all_reduce(transposed).wait();
  EXPECT_TRUE(same_bits(matrix, expected(communicator.size(), 12, at::kFloat, ReduceOp::sum).view({3, 4})));

  EXPECT_THROW(communicator.all_reduce(at::Tensor()), UsageError);
  EXPECT_THROW(communicator.all_reduce(at::ones({2}, at::kLong), ReduceOp::mean), UsageError);
  EXPECT_THROW(communicator.all_reduce(at::ones({2}).to_sparse()), UsageError);
  for (const auto dtype : {at::kFloat8_e4m3fn, at::kUInt16, at::kUInt64}) {
    EXPECT_THROW(communicator.all_reduce(at::zeros({2}, dtype)), UsageError) << dtype;
  }
  EXPECT_THROW(communicator.all_gather(at::ones({communicator.size() * 2 + 1}), at::ones({2})), UsageError);
  EXPECT_THROW(communicator.all_gather(at::ones({communicator.size() * 2}, at::kLong), at::ones({2})), UsageError);
  EXPECT_THROW(communicator.all_to_all(at::ones({2}), at::ones({3})), UsageError);
  if (communicator.size() > 1) {
    const std::vector<at::Tensor> one_tensor(static_cast<std::size_t>(communicator.size()), at::ones({2}));
    EXPECT_THROW(communicator.all_to_all_v(one_tensor, one_tensor), UsageError);
  }
  EXPECT_THROW(communicator.broadcast(at::ones({2}), communicator.size()), UsageError);
  EXPECT_THROW(communicator.barrier({.timeout = std::chrono::milliseconds(0), .name = ""}), UsageError);
  EXPECT_THROW(comm::GradientCommunicator(communicator).start_all_reduce(at::ones({3, 4}).t()), UsageError);
  communicator.barrier().wait();
}

void check_groups(const Communicator& communicator) {
  const int rank = communicator.rank();
  const int size = communicator.size();
  auto copy = communicator.duplicate("copy");
  // Duplicates are independent: the order of operations on both may differ between ranks.
  auto on_copy = at::ones({5});
  auto on_first = at::ones({7});
  std::vector<Work> works;
  if (rank % 2 == 0) works.push_back(copy.all_reduce(on_copy));
  works.push_back(communicator.all_reduce(on_first));
  if (rank % 2 == 1) works.push_back(copy.all_reduce(on_copy));
  for (const auto& work : works) work.wait();
  EXPECT_TRUE(at::equal(on_copy, at::full({5}, size)));
  EXPECT_TRUE(at::equal(on_first, at::full({7}, size)));

  // Even and odd ranks, in reverse order.
  const auto group = communicator.split(rank % 2, -rank);
  ASSERT_TRUE(group.has_value());
  EXPECT_EQ(group->size(), rank % 2 == 0 ? (size + 1) / 2 : size / 2);
  EXPECT_EQ(group->rank(), group->size() - 1 - rank / 2);
  const auto ranks = group->all_gather_object(std::to_string(rank));
  for (int place = 0; place < group->size(); ++place) {
    EXPECT_EQ(ranks[static_cast<std::size_t>(place)], std::to_string((group->size() - 1 - place) * 2 + rank % 2));
  }

  std::vector<int> alike;
  for (int other = rank % 2; other < size; other += 2) alike.push_back(other);
  const auto half = communicator.subgroup(alike, "half");  // two groups of one name, without a common rank
  auto ones = at::ones({3});
  half.all_reduce(ones).wait();
  EXPECT_TRUE(at::equal(ones, at::full({3}, static_cast<double>(alike.size()))));
  EXPECT_THROW(communicator.subgroup(alike, "half"), UsageError) << "messages of both would be mixed";
  communicator.barrier().wait();

  const auto only_last = communicator.split(rank == size - 1 ? 0 : -1);
  EXPECT_EQ(only_last.has_value(), rank == size - 1);
  communicator.barrier().wait();
}

void check_mismatches(const Communicator& communicator) {
  if (communicator.size() == 1) return;
  const bool first = communicator.rank() == 0;
  const auto message_of = [](const Work& work) -> std::string {
    try {
      work.wait();
    } catch (const MismatchError& error) {
      return error.what();
    }
    return "nothing thrown";
  };
  auto tensor = at::ones({4});
  auto gathered = at::zeros({3 * communicator.size()});
  auto message = message_of(first ? communicator.all_reduce(tensor) : communicator.all_gather(gathered, at::ones({3})));
  EXPECT_NE(message.find("rank 0 calls all_reduce(float [4], sum)"), std::string::npos) << message;
  EXPECT_NE(message.find("all_gather(float [3])"), std::string::npos) << message;

  EXPECT_NE(message_of(communicator.all_reduce(at::ones({first ? 4 : 5}))), "nothing thrown");
  EXPECT_NE(message_of(communicator.all_reduce(first ? at::ones({4}) : at::ones({4}, at::kInt))), "nothing thrown");
  EXPECT_NE(message_of(communicator.broadcast(tensor, first ? 0 : 1)), "nothing thrown");
  message = message_of(communicator.barrier({.timeout = std::nullopt, .name = first ? "epoch" : "step"}));
  EXPECT_NE(message.find("barrier('epoch')"), std::string::npos) << message;

  EXPECT_TRUE(at::equal(tensor, at::ones({4})));
  EXPECT_FALSE(communicator.failed());
  communicator.all_reduce(tensor).wait();
  EXPECT_TRUE(at::equal(tensor, at::full({4}, communicator.size())));
}

void check_unwaited(const Communicator& communicator) {
  for (int i = 0; i < 3; ++i) communicator.all_reduce(at::ones({100'000}));
  auto copy = communicator.duplicate("unwaited");
  copy.all_reduce(at::ones({100'000}));
  comm::GradientCommunicator(copy).submit([copy] {});  // the task may hold the last reference
  communicator.barrier().wait();
}

void check_all(const Communicator& communicator) {
  check_all_reduce(communicator);
  check_all_gather(communicator);
  check_reduce_scatter(communicator);
  check_all_to_all(communicator);
  check_overlapping(communicator);
  check_rooted(communicator);
  check_messages(communicator);
  check_broadcast(communicator);
  check_objects(communicator);
  check_pending(communicator);
  check_layout_of_tensors(communicator);
  check_lazy_tensors(communicator);
  check_groups(communicator);
  check_mismatches(communicator);
  check_unwaited(communicator);
}

}  // namespace tutti::test
