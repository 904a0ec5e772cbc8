// Ranks: 2 and 3 processes, of which one gets no shared memory or no file descriptor. Gradients are then sent as
// messages, with a warning, or all ranks throw.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <iostream>
#include <optional>
#include <span>
#include <vector>

#include "core/file_descriptor.h"
#include "support/ranks.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::test::refused_memory_test {
namespace {

/// Returns false if the kernel does not support filters.
bool install_filter(std::span<sock_filter> program) {
  const sock_fprog filter{.len = static_cast<unsigned short>(program.size()), .filter = program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0;
}

/// Makes memfd_create() fail in this process, as in a sandbox.
bool refuse_shared_memory() {
  std::array<sock_filter, 4> program{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  return install_filter(program);
}

/// Makes fallocate() of more than 32 MiB fail in this process, as a signal does in the kernels of many machines.
bool interrupt_long_allocations() {
  std::array<sock_filter, 6> program{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[3])),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 32 << 20, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINTR),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  return install_filter(program);
}

/// Uses up the file descriptors of this process, for the object's lifetime.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit limit{.rlim_cur = 256, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    for (int used = 0; (used = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) used_.emplace_back(used);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
  std::vector<FileDescriptor> used_;
};

/// Runs an all-reduce in `memory`, which Communicator::allocate() returned, and checks the result.
void expect_right_sum(const Communicator& communicator, const at::Tensor& memory) {
  const at::Tensor values = memory.view(at::kFloat);
  values.fill_(communicator.rank() + 1);
  const auto sum = comm::GradientCommunicator(communicator).start_all_reduce(values);
  sum->finish_reduce_scatter(1.0);
  sum->wait();
  const int size = communicator.size();
  EXPECT_TRUE(at::equal(values, at::full({values.numel()}, size * (size + 1) / 2.0F)));
}

constexpr std::int64_t bytes = 4 << 20;

void say(const std::string& text) {
  std::cout << text << std::endl;
}

const RankProgram refused("memory_is_refused", [] {
  const auto first = Communicator::connect(read_environment());
  EXPECT_EQ(first.backend_name(), "shared memory + tcp");
  const at::Tensor shared = comm::GradientCommunicator(first).allocate(bytes);
  say("no memory");
  if (first.rank() == 0 && !refuse_shared_memory()) say("cannot refuse");
  expect_right_sum(first, comm::GradientCommunicator(first).allocate(bytes));
  expect_right_sum(first, shared);  // memory that was shared earlier stays shared
  const auto copy = first.duplicate("copy");
  EXPECT_EQ(copy.backend_name(), "tcp");
  expect_right_sum(copy, comm::GradientCommunicator(copy).allocate(bytes));
  say("from the start");
  const auto second = Communicator::connect(read_environment());
  EXPECT_EQ(second.backend_name(), "tcp");
  expect_right_sum(second, comm::GradientCommunicator(second).allocate(bytes));
  try {
    Communicator::connect(read_environment(), {.backend = "shared_memory"});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UsageError& error) {
    say(error.what());
  }
  second.barrier().wait();
});

TEST(RefusedMemory, OnOneRankGradientsGoOverMessagesWithAWarning) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizers need descriptors themselves, and LibTorch leaks where it gets none";
#endif
  const auto results = run_processes(refused, 3);
  if (results[0].output.find("cannot refuse") != std::string::npos) GTEST_SKIP() << "this kernel has no seccomp";
  expect_success(results);
  // Only rank 0 logs which transport is used, once for each fallback.
  const std::string& output = results[0].output;
  const auto expect_between = [&](const std::string& begin, const std::string& end, const std::string& text) {
    const auto from = output.find(begin);
    const auto to = output.find(end, from);
    ASSERT_NE(to, std::string::npos) << output;
    EXPECT_NE(output.substr(from, to - from).find(text), std::string::npos) << text << " is not in:\n" << output;
  };
  const std::string buffer =
      "warning: a gradient buffer of 4194304 bytes is sent over tcp, not through shared memory: ";
  expect_between("no memory", "from the start", buffer + "rank 0: memfd_create: Operation not permitted");
  expect_between("from the start", "The backend",
                 "warning: gradients are sent over tcp, not through shared memory: rank 0: memfd_create: Operation "
                 "not");
  for (const auto& result : results) {
    EXPECT_NE(result.output.find("The backend shared_memory cannot be used: rank 0: memfd_create"), std::string::npos)
        << result.output;
  }
  EXPECT_EQ(results[2].output.find("warning"), std::string::npos) << results[2].output;
}

const RankProgram interrupted("allocations_are_interrupted", [] {
  const auto communicator = Communicator::connect(read_environment());
  if (!interrupt_long_allocations()) say("cannot refuse");
  expect_right_sum(communicator, comm::GradientCommunicator(communicator).allocate(64 << 20));
});

TEST(RefusedMemory, ASignalDuringAnAllocationDoesNotEndIt) {
  const auto results = run_processes(interrupted, 2);
  if (results[0].output.find("cannot refuse") != std::string::npos) GTEST_SKIP() << "this kernel has no seccomp";
  expect_success(results);
  EXPECT_EQ(results[0].output.find("warning"), std::string::npos) << results[0].output;
}

const RankProgram no_descriptor_to_connect("no_descriptor_to_connect", [] {
  const Environment environment = read_environment();
  wait_for_go();
  std::optional<NoDescriptors> none;
  if (environment.rank == 1) none.emplace();
  try {
    Communicator::connect(environment, {.connect_timeout = std::chrono::seconds(3)});
    say("connected");
  } catch (const TimeoutError& error) {
    say(std::string("TimeoutError: ") + error.what());
  } catch (const std::exception& error) {
    say(std::string("error: ") + error.what());
  }
});

TEST(NoDescriptors, ARankThatCannotConnectThrowsAndIsNamed) {
  RankProcesses ranks(no_descriptor_to_connect, 2);
  ranks.go();
  const auto results = ranks.wait();
  expect_success(results);
  EXPECT_NE(results[0].output.find("TimeoutError: rank 1 did not join"), std::string::npos) << results[0].output;
  EXPECT_EQ(results[1].output.find("connected"), std::string::npos) << results[1].output;
  EXPECT_NE(results[1].output.find("Too many open files"), std::string::npos) << results[1].output;
}

const RankProgram no_descriptor_in_a_call("no_descriptor_in_a_call", [] {
  const auto communicator = Communicator::connect(read_environment());
  std::optional<NoDescriptors> none;
  if (communicator.rank() == 1) none.emplace();
  const auto say_failure = [](const auto& call) {
    try {
      call();
      say("nothing was thrown");
    } catch (const PeerError& error) {
      EXPECT_EQ(error.ranks(), std::vector<int>{1});
      say(error.what());
    }
  };
  at::Tensor values = at::ones({4});
  if (communicator.rank() == 1) say_failure([&] { communicator.send(values, 0).wait(); });
  say_failure([&] { communicator.reduce(at::ones({1 << 16})).wait(); });
});

TEST(NoDescriptors, ACallThatNeedsAConnectionNamesTheRankAndTheReason) {
  const auto results = run_processes(no_descriptor_in_a_call, 2);
  expect_success(results);
  const std::string reason = ": on rank 1 a connection to rank 0 cannot be made: opening a socket: Too many open files";
  EXPECT_NE(results[0].output.find("rank 1 disconnected"), std::string::npos) << results[0].output;
  EXPECT_NE(results[1].output.find("send (tag 0)" + reason), std::string::npos) << results[1].output;
  EXPECT_NE(results[1].output.find("reduce (operation 0)" + reason), std::string::npos) << results[1].output;
}

}  // namespace
}  // namespace tutti::test::refused_memory_test
