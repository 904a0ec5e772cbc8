// Ranks: none; a child process. The event of its exit, with a pidfd and where the system refuses one or both.
#include "launch/exit_event.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <system_error>
#include <vector>

#include "launch/program.h"
#include "launch/rank_process.h"
#include "launch/tutti_process.h"

namespace tutti::exit_event_test {
namespace {

bool is_readable(const ExitEvent& event, int timeout) {
  pollfd poll{event.fd(), POLLIN, 0};
  return ::poll(&poll, 1, timeout) == 1 && (poll.revents & (POLLIN | POLLHUP)) != 0;
}

TEST(ExitEvent, BecomesReadableWhenTheChildHasExited) {
  for (const auto source : {ExitEvent::Source::automatic, ExitEvent::Source::thread}) {
    std::array<char, 11> program{"/bin/sleep"};
    std::array<char, 6> seconds{"10000"};
    std::array<char*, 3> arguments{program.data(), seconds.data(), nullptr};
    pid_t child = -1;
    ASSERT_EQ(::posix_spawn(&child, program.data(), nullptr, nullptr, arguments.data(), environ), 0);
    const ExitEvent event(child, source);
    EXPECT_FALSE(is_readable(event, 0));
    ::kill(child, SIGKILL);
    constexpr int forever = -1;
    EXPECT_TRUE(is_readable(event, forever));
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child) << "the event does not reap the child";
    EXPECT_EQ(WTERMSIG(status), SIGKILL);
  }
}

TEST(RankProcess, EndsAProcessWhoseExitItCannotWatch) {
  const test::CommandsInPath in_path;
  RankCommand command;
  command.guard = find_rank_guard();
  command.program = "/bin/sleep";
  command.arguments = {"10000"};
  Sink sink(STDERR_FILENO);
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit low{.rlim_cur = 256, .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &low);
  std::vector<FileDescriptor> used;
  for (int fd = 0; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) used.emplace_back(fd);
  constexpr std::size_t of_its_pipes = 4;
  used.resize(used.size() - of_its_pipes);
  EXPECT_THROW(RankProcess(0, command, RankOutput(0, std::nullopt), sink, sink), std::system_error);
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "there is no child process";
}

}  // namespace
}  // namespace tutti::exit_event_test
