// Ranks: none; a child process. The event of its exit, with a pidfd and where the system refuses one.
#include "launch/exit_event.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

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

}  // namespace
}  // namespace tutti::exit_event_test
