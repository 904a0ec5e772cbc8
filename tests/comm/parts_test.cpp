// One process. The components under the collectives.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <array>
#include <latch>

#include "comm/algorithms/buffer_pool.h"
#include "comm/algorithms/direct_all_reduce.h"
#include "comm/backend/describe.h"
#include "comm/call_signature.h"
#include "comm/worker.h"
#include "tutti/core/error.h"

namespace tutti::comm::parts_test {
namespace {

TEST(CallSignature, TheLongestLengthIsOneThatMemoryCanHave) {
  EXPECT_EQ(longest_of(std::vector<std::uint64_t>{3, 9, 1}), 9U);
  EXPECT_EQ(longest_of(std::vector<std::uint64_t>{0}), 0U);
  for (const std::uint64_t length : {std::uint64_t{1} << 46, ~std::uint64_t{0}}) {
    try {
      longest_of(std::vector<std::uint64_t>{3, 9, length});
      FAIL() << length;
    } catch (const PeerError& error) {
      EXPECT_EQ(error.ranks(), std::vector<int>{2});
    }
  }
}

TEST(CallSignature, ReadsNoFurtherThanItsText) {
  CallSignature print("all_reduce(float [4])");
  EXPECT_EQ(print.call(), "all_reduce(float [4])");
  print.text_size = 1'000'000;
  EXPECT_EQ(print.call().size(), print.text.size());
}

TEST(Partition, CoverEverythingOnceInWholeCacheLines) {
  for (const std::size_t elements : {0U, 1U, 15U, 16U, 17U, 100U, 1000U, 4097U}) {
    for (int size = 1; size <= 5; ++size) {
      std::size_t covered = 0;
      for (int rank = 0; rank < size; ++rank) {
        const auto shard = shard_of(elements, 4, rank, size);
        EXPECT_TRUE(shard.length == 0 || shard.offset == covered);
        EXPECT_EQ(shard.offset * 4 % 64 == 0 || shard.length == 0, true);
        covered += shard.length;
      }
      EXPECT_EQ(covered, elements);
    }
  }
}

TEST(Partition, ChunksCoverAShard) {
  const auto chunks = chunks_of({100, 3'000'000}, 4);
  EXPECT_GT(chunks.size(), 1U);
  std::size_t next = 100;
  for (const auto& chunk : chunks) {
    EXPECT_EQ(chunk.offset, next);
    next += chunk.length;
  }
  EXPECT_EQ(next, 3'000'100U);
  EXPECT_TRUE(chunks_of({100, 0}, 4).empty());
}

// Three numbers whose sum depends on the order.
TEST(ReduceTree, KeepsTheOrderForAnyDestination) {
  constexpr float big = 1e8F;
  std::array<float, 3> first{};
  for (std::size_t own = 0; own < 3; ++own) {
    std::array<float, 3> values = {big, -big, 1.0F};
    std::array<const std::byte*, 3> contributions{};
    for (std::size_t i = 0; i < 3; ++i) contributions[i] = reinterpret_cast<const std::byte*>(&values[i]);
    reduce_tree(contributions, reinterpret_cast<std::byte*>(&values[own]), 1, at::kFloat, {});
    first[own] = values[own];
  }
  EXPECT_EQ(first, (std::array<float, 3>{1, 1, 1}));
}

// The left four of five first: ((a + b) + (c + d)) + e.
TEST(ReduceTree, AddsAlongATreeThatDependsOnTheCountAlone) {
  constexpr float big = 1e8F;
  const auto sum = [](std::vector<float> values) {
    std::vector<const std::byte*> contributions;
    for (const float& value : values) contributions.push_back(reinterpret_cast<const std::byte*>(&value));
    float result = 0;
    reduce_tree(contributions, reinterpret_cast<std::byte*>(&result), 1, at::kFloat, {});
    return result;
  };
  EXPECT_EQ(sum({1, big, -big, 0}), 0);  // (1 + big) + (-big + 0)
  EXPECT_EQ(sum({big, -big, 1, 1}), 2);  // 0 + 2
  EXPECT_EQ(sum({big, 1, 1, -big}), 0);  // big + (1 - big)
  EXPECT_EQ(sum({big, 0, -big, 0, 1}), 1);
  EXPECT_EQ(sum({0, 0, 0, big, -big, 1}), 0);  // big + (-big + 1)
  for (std::size_t count = 2; count < 70; ++count) EXPECT_EQ(sum(std::vector<float>(count, 1)), count);
}

TEST(ReduceTree, FloatsHaveTheBitsOfDoublesRoundedWhereSumsAreExact) {
  // Lengths around the loops' block sizes, at odd addresses.
  for (const std::size_t elements : {1U, 7U, 1023U, 1024U, 1025U, 5000U}) {
    std::vector<float> memory(3 * elements + 1);
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i % 977) - 400;
    std::vector<const std::byte*> contributions;
    for (std::size_t i = 0; i < 3; ++i)
      contributions.push_back(reinterpret_cast<std::byte*>(&memory[1 + i * elements]));
    std::vector<float> result(elements);
    reduce_tree(contributions, reinterpret_cast<std::byte*>(result.data()), elements, at::kFloat,
                {.op = ReduceOp::mean, .factor = 0.5, .divisor = 4});
    for (std::size_t i = 0; i < elements; ++i) {
      EXPECT_EQ(result[i], (memory[1 + i] + memory[1 + elements + i] + memory[1 + 2 * elements + i]) / 4 * 0.5F);
    }
  }
}

TEST(ReduceTree, NarrowTypesAreRoundedOnce) {
  // 256 + 1 + 1 in bf16: each addition alone would be lost.
  auto values = at::empty({3}, at::kFloat);
  values.select(0, 0).fill_(256);
  values.select(0, 1).fill_(1);
  values.select(0, 2).fill_(1);
  auto narrow = values.to(at::kBFloat16);
  auto* memory = static_cast<std::byte*>(narrow.data_ptr());
  reduce_tree(std::array<const std::byte*, 3>{memory, memory + 2, memory + 4}, memory, 1, at::kBFloat16, {});
  EXPECT_EQ(narrow.select(0, 0).item<float>(), 258);
}

TEST(BufferPool, MemoryComesBackAndIsAligned) {
  BufferPool pool;
  auto first = pool.acquire(1000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.data) % 64, 0U);
  auto* const memory = first.data;
  auto part = first.part(10, 20);
  first = {};
  auto second = pool.acquire(1000);
  EXPECT_NE(second.data, memory);  // `part` still holds the memory
  part = {};
  EXPECT_EQ(pool.acquire(500).data, memory);
}

TEST(BufferPool, MayEndBeforeItsMemory) {
  Buffer block;
  {
    BufferPool pool;
    block = pool.acquire(100);
  }
  block.data[99] = std::byte{1};
}

TEST(Worker, RunsInOrderAndPropagatesExceptions) {
  std::vector<int> order;
  Worker worker;
  std::shared_ptr<WorkState> last;
  for (int i = 0; i < 10; ++i) last = worker.submit([&order, i] { order.push_back(i); });
  last->wait();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_THROW(worker.submit([] { throw UsageError("no"); })->wait(), UsageError);
}

TEST(Worker, ATaskMaySubmitAndWait) {
  Worker worker;
  bool inner = false;
  const auto nested = [&] { worker.submit([&] { inner = true; })->wait(); };
  worker.submit([&] { worker.submit(nested)->wait(); })->wait();
  EXPECT_TRUE(inner);
}

TEST(Worker, DestructionRunsWhatIsLeft) {
  int count = 0;
  {
    Worker worker;
    for (int i = 0; i < 5; ++i) worker.submit([&] { ++count; });
  }
  EXPECT_EQ(count, 5);
}

TEST(Worker, MayEndOnItsOwnThread) {
  auto worker = std::make_shared<Worker>();
  std::latch go(1);
  auto first = worker->submit([&go, held = worker]() mutable {
    go.wait();
    held.reset();
  });
  auto second = worker->submit([] {});
  worker.reset();
  go.count_down();
  first->wait();
  EXPECT_THROW(second->wait(), Error);
}

TEST(CallSignatures, ShortTextsAndLongOnesDifferByTheirHash) {
  const std::string start(300, 'x');
  EXPECT_NE(CallSignature(start + "a").hash, CallSignature(start + "b").hash);
  EXPECT_EQ(CallSignature("barrier()").call(), "barrier()");
  const std::vector<CallSignature> three = {CallSignature("a()"), CallSignature("b()"), CallSignature("a()")};
  try {
    check_signatures(three, {.number = 7, .op_name = "a", .name = ""});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const MismatchError& error) {
    EXPECT_EQ(std::string(error.what()).substr(0, 61), "ranks 0, 2 call a() where rank 1 calls b() (operation 7). Not");
  }
}

TEST(Describe, RanksAndDurations) {
  EXPECT_EQ(describe_ranks({2}), "rank 2");
  EXPECT_EQ(describe_ranks({0, 1, 2, 3}), "ranks 0, 1, 2, 3");
  EXPECT_EQ(describe_ranks({0, 2, 3, 5, 6, 7, 8, 9, 15}), "ranks 0, 2, 3, 5 to 9, 15");
  EXPECT_EQ(describe_duration(std::chrono::seconds(30)), "30 s");
  EXPECT_EQ(describe_duration(std::chrono::milliseconds(1500)), "1500 ms");
}

}  // namespace
}  // namespace tutti::comm::parts_test
