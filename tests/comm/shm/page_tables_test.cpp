// 8 processes: what a rank's page tables take grows with its gradients, not with those of all ranks of its node.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <cstring>
#include <fstream>
#include <string>

#include "support/ranks.h"
#include "tutti/detail/comm/pending.h"

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
/// What tables of small pages take for so many bytes.
constexpr std::int64_t tables_of(std::int64_t bytes) {
  return bytes / 512;
}

/// Of this process, in bytes.
std::int64_t page_tables() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kilobytes = 0;
    if (word == "VmPTE:" && status >> kilobytes) return kilobytes << 10;
  }
  ADD_FAILURE() << "/proc/self/status does not say VmPTE";
  return 0;
}

/// What `bytes` of gradients take when they have been summed.
std::int64_t page_tables_for(const Communicator& channel, std::int64_t bytes) {
  const std::int64_t before = page_tables();
  const at::Tensor memory = channel.allocate(bytes).view(at::kFloat);
  memory.fill_(channel.rank() + 1);
  for (int round = 0; round < 2; ++round) {
    const auto sum = channel.start_all_reduce(memory);
    sum->finish_reduce_scatter(1.0);
    sum->wait();
  }
  const std::int64_t taken = page_tables() - before;
  const int all = channel.size() * channel.size() * (channel.size() + 1) / 2;
  EXPECT_TRUE(at::equal(memory, at::full({memory.numel()}, static_cast<float>(all))));
  return taken;
}

void expect_page_tables_below(std::int64_t bytes) {
  const Communicator channel = Communicator::connect(read_environment(), {.backend = "shared_memory"});
  constexpr std::int64_t few = 1 << 20;
  (void)page_tables_for(channel, few);  // what only the first sum takes
  EXPECT_LT(page_tables_for(channel, gradient_bytes), bytes);
}

// All of this rank's gradients, and a slice of every other one's.
const RankProgram small_pages("page_tables_of_small_pages", [] {
  EXPECT_EQ(::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
  expect_page_tables_below(4 * tables_of(gradient_bytes));
});
TEST(PageTables, HoldAShardOfTheOthersGradients) {
  if (sanitized) GTEST_SKIP() << "sanitizers take page tables themselves";
  test::expect_success(run_processes(small_pages, ranks));
}

/// Whether the kernel makes huge pages for the asking, of as much memory as all ranks will want.
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
