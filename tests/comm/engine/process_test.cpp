// One process and a child. Telling processes apart, seeing them end, and mapping only what another one shared.
#include "comm/engine/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string>
#include <system_error>

#include "comm/engine/patience.h"
#include "comm/shared/segment.h"
#include "comm/shared/stopped.h"
#include "tutti/core/error.h"

namespace tutti::comm::process_test {
namespace {

/// A child that does nothing.
class Sleeper {
 public:
  Sleeper() {
    std::array<char, 6> name{"sleep"};
    std::array<char, 6> seconds{"10000"};
    std::array<char*, 3> arguments = {name.data(), seconds.data(), nullptr};
    EXPECT_EQ(::posix_spawnp(&process_, name.data(), nullptr, nullptr, arguments.data(), ::environ), 0);
  }
  ~Sleeper() { kill_and_reap(); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  pid_t process() const { return process_; }
  /// It has ended, and its parent has not taken note.
  void kill() const {
    ::kill(process_, SIGKILL);
    siginfo_t info{};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOWAIT), 0);
  }
  void kill_and_reap() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    EXPECT_EQ(::waitpid(process_, nullptr, 0), process_);
    process_ = 0;
  }

 private:
  pid_t process_ = 0;
};

/// While it lives, no descriptor can be opened.
class NoDescriptors {
 public:
  NoDescriptors() {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit none = before_;
    none.rlim_cur = 0;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

TEST(ProcessWatch, SeesAProcessEndBeforeItsParentDoes) {
  const Sleeper child;
  const ProcessWatch watch(child.process());
  EXPECT_EQ(watch.state(), ProcessState::running);
  child.kill();
  EXPECT_EQ(watch.state(), ProcessState::ended);
}

TEST(ProcessWatch, TellsAStoppedProcessFromOneThatWaits) {
  const Sleeper child;
  const ProcessWatch watch(child.process());
  siginfo_t info{};
  const auto id = static_cast<id_t>(child.process());
  EXPECT_EQ(watch.state(), ProcessState::running);
  for (int time = 0; time < 2; ++time) {
    ::kill(child.process(), SIGSTOP);
    ASSERT_EQ(::waitid(P_PID, id, &info, WSTOPPED), 0);
    EXPECT_EQ(watch.state(), ProcessState::stopped);
    ::kill(child.process(), SIGCONT);
    ASSERT_EQ(::waitid(P_PID, id, &info, WCONTINUED), 0);
    EXPECT_EQ(watch.state(), ProcessState::running);
  }
  child.kill();
  EXPECT_EQ(watch.state(), ProcessState::ended);
}

/// A variable of this process, as long as this lives.
class Variable {
 public:
  explicit Variable(const std::string& value) { ::setenv(name, value.c_str(), 1); }
  ~Variable() { ::unsetenv(name); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  static constexpr const char* name = "TUTTI_STOPPED_TIMEOUT";
};

TEST(StoppedTimeout, IsWhatTheVariableSays) {
  EXPECT_EQ(stopped_timeout(), std::chrono::milliseconds(1500));
  {
    const Variable seconds("0.25");
    EXPECT_EQ(stopped_timeout(), std::chrono::milliseconds(250));
  }
  for (const char* wrong : {"", "0", "-1", "soon", "1s", "1e99", "nan"}) {
    const Variable variable(wrong);
    EXPECT_THROW((void)stopped_timeout(), UsageError) << wrong;
  }
}

TEST(StoppedClock, CountsWhatWasSeenWithoutInterruption) {
  using std::chrono::milliseconds;
  const Deadline begin{};
  StoppedClock clock(begin);
  EXPECT_FALSE(clock.due(begin + milliseconds(49)));
  EXPECT_TRUE(clock.due(begin + milliseconds(50)));
  EXPECT_EQ(clock.look(begin + milliseconds(50), true), milliseconds(50));
  EXPECT_FALSE(clock.due(begin + milliseconds(75)));
  EXPECT_EQ(clock.look(begin + milliseconds(125), true), milliseconds(125));
  EXPECT_EQ(clock.look(begin + milliseconds(175), false), milliseconds(0));
  EXPECT_EQ(clock.look(begin + milliseconds(225), true), milliseconds(50));
  // An hour that nobody saw.
  EXPECT_EQ(clock.look(begin + std::chrono::hours(1), true), milliseconds(150));
}

TEST(ProcessWatch, WithoutDescriptorsAProcessThatRunsIsNotGone) {
  Sleeper child;
  const auto look_without_descriptors = [](const ProcessWatch& watch) {
    const NoDescriptors none;
    return watch.state();
  };
  const ProcessWatch watch(child.process());
  EXPECT_EQ(look_without_descriptors(watch), ProcessState::running);
  const ProcessWatch made_without = [&] {
    const NoDescriptors none;
    return ProcessWatch(child.process());
  }();
  EXPECT_EQ(made_without.state(), ProcessState::running);
  child.kill_and_reap();
  EXPECT_EQ(look_without_descriptors(watch), ProcessState::ended);
  EXPECT_EQ(made_without.state(), ProcessState::ended);
}

TEST(ProcessWatch, KnowsAProcessByWhatItSaysOfItself) {
  EXPECT_EQ(ProcessWatch(this_process()).state(), ProcessState::running);
  const Sleeper child;
  ProcessIdentity said{.number = child.process(), .started = 1, .clock_inode = this_process().clock_inode};
  EXPECT_EQ(ProcessWatch(said).state(), ProcessState::ended) << "its number is another process's by now";
  said.clock_inode = 0;  // another clock says nothing here
  EXPECT_EQ(ProcessWatch(said).state(), ProcessState::running);
  child.kill();
  EXPECT_EQ(ProcessWatch(said).state(), ProcessState::ended);
}

TEST(ProcessWatch, AProcessThatIsNoMoreIsGone) {
  Sleeper child;
  const pid_t process = child.process();
  child.kill_and_reap();
  EXPECT_EQ(ProcessWatch(process).state(), ProcessState::ended);
}

TEST(ProcessIdentity, IsItselfAndSeesItself) {
  const ProcessIdentity own = this_process();
  EXPECT_EQ(own.number, ::getpid());
  EXPECT_TRUE(own.is(this_process()));
  EXPECT_TRUE(own.sees(this_process()));
  EXPECT_NE(own.nonce, decltype(own.nonce){});
}

/// What `address` would be if it came from another process with the number of this one.
SegmentAddress of_another(SegmentAddress address) {
  address.process.nonce[0] ^= 1;
  return address;
}

/// The error of opening it; 0 for none.
int error_of(const SegmentAddress& address) {
  try {
    SharedSegment::open(address);
    return 0;
  } catch (const std::system_error& error) {
    return error.code().value();
  }
}

TEST(SharedSegment, OfAnotherProcessIsMappedThroughItsDescriptor) {
  // Of small pages; of huge ones with a rest of small ones, where the kernel has huge ones.
  for (const std::size_t bytes : {10'000, (4 << 20) + 10'000}) {
    const auto own = SharedSegment::create(bytes);
    EXPECT_TRUE(std::all_of(own->data(), own->data() + bytes, [](std::byte byte) { return byte == std::byte{0}; }));
    own->data()[bytes - 1] = std::byte{42};
    const auto other = SharedSegment::open(of_another(own->address()));
    EXPECT_NE(own->data(), other->data());
    EXPECT_EQ(other->size(), bytes);
    EXPECT_EQ(other->data()[bytes - 1], std::byte{42});
    other->data()[0] = std::byte{7};
    EXPECT_EQ(own->data()[0], std::byte{7});
  }
}

TEST(SharedSegment, IsNotTakenFromAnotherNamespaceThoughTheNumberIsThisProcess) {
  const auto own = SharedSegment::create(100);
  SegmentAddress address = of_another(own->address());
  ++address.process.namespace_inode;
  EXPECT_EQ(error_of(address), EXDEV);
  address.process.namespace_inode = 0;  // it could not tell
  EXPECT_EQ(error_of(address), EXDEV);
}

TEST(SharedSegment, IsNotTakenFromAFileThatIsSomethingElse) {
  const auto own = SharedSegment::create(100);
  const auto another = SharedSegment::create(100);
  const SegmentAddress address = of_another(own->address());
  EXPECT_EQ(error_of(address), 0);

  SegmentAddress wrong = address;
  wrong.descriptor = another->address().descriptor;
  EXPECT_EQ(error_of(wrong), ESTALE);
  wrong = address;
  ++wrong.bytes;
  EXPECT_EQ(error_of(wrong), ESTALE);
  wrong = address;
  ++wrong.nonce[1];
  EXPECT_EQ(error_of(wrong), ESTALE);
  wrong = address;
  wrong.descriptor = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_EQ(error_of(wrong), ESTALE);
  ::close(wrong.descriptor);
  EXPECT_EQ(error_of(wrong), ENOENT);
}

}  // namespace
}  // namespace tutti::comm::process_test
