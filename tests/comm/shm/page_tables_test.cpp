// Ranks: 8 processes. The size of a rank's page tables grows with the rank's own gradients, not with the gradients of
// all ranks of a node.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <cstring>
#include <fstream>
#include <string>

#include "support/ranks.h"
#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::comm::page_tables_test {
namespace {

using test::RankProgram;
using test::run_processes;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif
constexpr int ranks = 8;
constexpr std::int64_t gradient_bytes = 32 << 20;
/// The size of the page tables that map `bytes` with small pages.
constexpr std::int64_t tables_of(std::int64_t bytes) {
  return bytes / 512;
}

/// The size of this process's page tables, in bytes.
std::int64_t page_tables() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kilobytes = 0;
    if (word == "VmPTE:" && status >> kilobytes) return kilobytes << 10;
  }
  ADD_FAILURE() << "/proc/self/status does not say VmPTE";
  return 0;
}

/// The growth of the page tables by an all-reduce of `bytes` of gradients.
std::int64_t page_tables_for(const Communicator& communicator, std::int64_t bytes) {
  const std::int64_t before = page_tables();
  const at::Tensor memory = GradientCommunicator(communicator).allocate(bytes).view(at::kFloat);
  memory.fill_(communicator.rank() + 1);
  for (int round = 0; round < 2; ++round) {
    const auto sum = GradientCommunicator(communicator).start_all_reduce(memory);
    sum->finish_reduce_scatter(1.0);
    sum->wait();
  }
  const std::int64_t taken = page_tables() - before;
  const int all = communicator.size() * communicator.size() * (communicator.size() + 1) / 2;
  EXPECT_TRUE(at::equal(memory, at::full({memory.numel()}, static_cast<float>(all))));
  return taken;
}

void expect_page_tables_below(std::int64_t bytes) {
  const Communicator communicator = Communicator::connect(read_environment(), {.backend = "shared_memory"});
  constexpr std::int64_t few = 1 << 20;
  (void)page_tables_for(communicator, few);  // excludes the one-time growth by the first all-reduce
  EXPECT_LT(page_tables_for(communicator, gradient_bytes), bytes);
}

// A rank maps all of its own gradients, and a shard of every other rank's gradients.
const RankProgram small_pages("page_tables_of_small_pages", [] {
  EXPECT_EQ(::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
  expect_page_tables_below(4 * tables_of(gradient_bytes));
});
TEST(PageTables, HoldAShardOfTheOthersGradients) {
  if (sanitized) GTEST_SKIP() << "sanitizers take page tables themselves";
  test::expect_success(run_processes(small_pages, ranks));
}

/// True if the kernel provides huge pages on request, for as much memory as all ranks need.
bool gets_huge_pages() {
  constexpr auto bytes = static_cast<std::size_t>(ranks * gradient_bytes);
  constexpr int make_huge = 25;  // MADV_COLLAPSE
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  std::memset(memory, 1, bytes);
  const bool gets = ::madvise(memory, bytes, make_huge) == 0;
  ::munmap(memory, bytes);
  return gets;
}

const RankProgram huge_pages("page_tables_of_huge_pages", [] { expect_page_tables_below(tables_of(gradient_bytes)); });
TEST(PageTables, AreAlmostNoneWhereThereAreHugePages) {
  if (sanitized) GTEST_SKIP() << "sanitizers take page tables themselves";
  if (!gets_huge_pages()) GTEST_SKIP() << "this machine has no huge pages to give";
  test::expect_success(run_processes(huge_pages, ranks));
}

}  // namespace
}  // namespace tutti::comm::page_tables_test
