// Ranks: none; one process and a child. Identities of processes, their exit, and mapping of another process's segment.
#include "comm/os/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <type_traits>

#include "comm/backend/failure_timeouts.h"
#include "comm/deadlock/inflight_calls.h"
#include "comm/rendezvous/job_connection.h"
#include "comm/shm/segment.h"
#include "core/in_this_process.h"
#include "core/socket.h"
#include "tutti/core/error.h"

namespace tutti::comm::process_test {
namespace {

/// A child process that sleeps.
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
  /// Kills the child and does not reap it.
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

/// Prevents this process from opening file descriptors, for the object's lifetime.
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

/// The identity of a child of this process.
ProcessIdentity identity_of(pid_t process) {
  ProcessIdentity identity{.pid = process, .time_namespace = this_process().time_namespace};
  if (const auto proc_stat = read_proc_stat("/proc/" + std::to_string(process))) {
    identity.start_time = proc_stat->start_time;
  }
  return identity;
}

TEST(ProcessProbe, DetectsAnExitBeforeTheParentReapsIt) {
  const Sleeper child;
  const ProcessProbe watch(identity_of(child.process()));
  EXPECT_FALSE(watch.has_exited());
  child.kill();
  EXPECT_TRUE(watch.has_exited());
}

TEST(ProcessProbe, AStoppedProcessHasNotExited) {
  const Sleeper child;
  const ProcessProbe watch(identity_of(child.process()));
  siginfo_t info{};
  const auto id = static_cast<id_t>(child.process());
  EXPECT_FALSE(watch.has_exited());
  for (int time = 0; time < 2; ++time) {
    ::kill(child.process(), SIGSTOP);
    ASSERT_EQ(::waitid(P_PID, id, &info, WSTOPPED), 0);
    EXPECT_FALSE(watch.has_exited());
    ::kill(child.process(), SIGCONT);
    ASSERT_EQ(::waitid(P_PID, id, &info, WCONTINUED), 0);
    EXPECT_FALSE(watch.has_exited());
  }
  child.kill();
  EXPECT_TRUE(watch.has_exited());
}

/// Sets the environment variable for the object's lifetime.
class Variable {
 public:
  explicit Variable(const std::string& value, const char* name = "TUTTI_HEARTBEAT_TIMEOUT") : name_(name) {
    ::setenv(name_, value.c_str(), 1);
  }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(HeartbeatTimeout, ComesFromTheVariable) {
  EXPECT_EQ(heartbeat_timeout(), std::chrono::seconds(15));
  EXPECT_EQ(heartbeat_timeout({.heartbeat_timeout = std::chrono::seconds(3)}), std::chrono::seconds(3));
  {
    const Variable seconds("0.25");
    EXPECT_EQ(heartbeat_timeout(), std::chrono::milliseconds(250));
    EXPECT_EQ(heartbeat_timeout({.heartbeat_timeout = std::chrono::seconds(3)}), std::chrono::seconds(3))
        << "the program's option has precedence";
  }
  {
    const Variable empty("");
    EXPECT_EQ(heartbeat_timeout(), std::chrono::seconds(15));
  }
  for (const char* wrong : {"0", "-1", "soon", "1s", "1e99", "nan"}) {
    const Variable variable(wrong);
    EXPECT_THROW((void)heartbeat_timeout(), UsageError) << wrong;
  }
  for (const int wrong : {0, -1}) {
    EXPECT_THROW((void)heartbeat_timeout({.heartbeat_timeout = std::chrono::seconds(wrong)}), UsageError) << wrong;
  }
}

TEST(DeadlockTimeout, ComesFromTheVariableAndMayBeZero) {
  constexpr const char* name = "TUTTI_DEADLOCK_TIMEOUT";
  EXPECT_EQ(deadlock_timeout(), std::chrono::seconds(15));
  EXPECT_EQ(deadlock_timeout({.deadlock_timeout = std::chrono::seconds(0)}), std::chrono::seconds(0));
  EXPECT_THROW((void)deadlock_timeout({.deadlock_timeout = std::chrono::seconds(-1)}), UsageError);
  for (const auto& [value, expected] : std::map<std::string, std::chrono::milliseconds>{
           {"0", std::chrono::milliseconds(0)}, {"0.5", std::chrono::milliseconds(500)}}) {
    const Variable variable(value, name);
    EXPECT_EQ(deadlock_timeout(), expected) << value;
  }
  const Variable variable("-1", name);
  EXPECT_THROW((void)deadlock_timeout(), UsageError);
}

TEST(ProcessProbe, ACoreDumpIsReadFromTheStatus) {
  const std::string before = "Name:\ttrain\nState:\tD (disk sleep)\nCoreDumping:\t";
  EXPECT_TRUE(reports_core_dump(before + "1\nTHP_enabled:\t1\n"));
  EXPECT_FALSE(reports_core_dump(before + "0\nTHP_enabled:\t1\n"));
  EXPECT_FALSE(reports_core_dump("Name:\tCoreDumping:\t1\n")) << "a name that looks like the line";
  EXPECT_FALSE(reports_core_dump(""));
}

TEST(ProcessProbe, WithoutDescriptorsARunningProcessHasNotExited) {
  Sleeper child;
  const auto has_exited_without_descriptors = [](const ProcessProbe& watch) {
    const NoDescriptors none;
    return watch.has_exited();
  };
  const ProcessProbe watch(identity_of(child.process()));
  EXPECT_FALSE(has_exited_without_descriptors(watch));
  const ProcessProbe probe_without_descriptors = [&] {
    const NoDescriptors none;
    return ProcessProbe(identity_of(child.process()));
  }();
  EXPECT_FALSE(probe_without_descriptors.has_exited());
  child.kill_and_reap();
  EXPECT_TRUE(has_exited_without_descriptors(watch));
  EXPECT_TRUE(probe_without_descriptors.has_exited());
}

TEST(ProcessProbe, IdentifiesAProcessByItsIdentity) {
  EXPECT_FALSE(ProcessProbe(this_process()).has_exited());
  const Sleeper child;
  ProcessIdentity identity{.pid = child.process(), .start_time = 1, .time_namespace = this_process().time_namespace};
  EXPECT_TRUE(ProcessProbe(identity).has_exited()) << "another process has reused the PID";
  identity.time_namespace = 0;  // start times of different time namespaces cannot be compared
  EXPECT_FALSE(ProcessProbe(identity).has_exited());
  child.kill();
  EXPECT_TRUE(ProcessProbe(identity).has_exited());
}

TEST(ProcessProbe, AReapedProcessHasExited) {
  Sleeper child;
  const pid_t process = child.process();
  child.kill_and_reap();
  EXPECT_TRUE(ProcessProbe(identity_of(process)).has_exited());
}

TEST(ProcessIdentity, EqualsItselfInItsNamespace) {
  const ProcessIdentity identity = this_process();
  EXPECT_EQ(identity.pid, ::getpid());
  EXPECT_TRUE(identity == this_process());
  EXPECT_TRUE(identity.shares_pid_namespace_with(this_process()));
  EXPECT_NE(identity.nonce, decltype(identity.nonce){});
}

/// Whether `condition` holds in a forked child.
bool holds_in_child(const std::function<bool()>& condition) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(condition() ? 0 : 1);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status == 0;
}

TEST(ProcessIdentity, OfAForkedChildIsNotThatOfItsParent) {
  const ProcessIdentity identity = this_process();
  EXPECT_TRUE(holds_in_child([&] { return this_process().pid == ::getpid() && !(this_process() == identity); }));
}

// The deadlock detector leaves out threads that have exited.
TEST(CallerThreads, AForkedChildRecordsItsThread) {
  const auto threads = std::make_shared<CallerThreads>();
  { const CallerThreads::Task task(threads); }
  EXPECT_TRUE(holds_in_child([&] {
    const CallerThreads::Task task(threads);
    return threads->running() == std::set<pid_t>{::getpid()};
  }));
}

// No thread of the child serves the connection of its parent.
TEST(ProcessConnection, AForkedChildMakesItsOwn) {
  const coordinator::Server server(
      {.listening = listen_tcp(loopback_host).socket, .linger = std::chrono::milliseconds(0)});
  const coordinator::ClientOptions options{.port = server.port(),
                                           .connect_timeout = std::chrono::seconds(20),
                                           .timeouts = {.heartbeat = std::chrono::seconds(20)}};
  const auto make = [&] { return make_shared_in_this_process<JobConnection>(nullptr, options, -1); };
  const auto connection = process_connection("test", make);
  EXPECT_TRUE(holds_in_child([] {
    bool is_made = false;
    process_connection("test", [&] {
      is_made = true;
      return std::shared_ptr<JobConnection>();
    });
    return is_made;
  }));
  EXPECT_EQ(process_connection("test", make), connection);
}

/// `address` as another process with the same PID would send it.
SegmentAddress of_another(SegmentAddress address) {
  address.process.nonce[0] ^= 1;
  return address;
}

/// The error number of opening the segment; 0 for success.
int error_of(const SegmentAddress& address) {
  try {
    SharedSegment::open(address, 100);
    return 0;
  } catch (const std::system_error& error) {
    return error.code().value();
  }
}

TEST(SharedSegment, OfAnotherProcessIsMappedThroughItsDescriptor) {
  // Small pages only; then huge pages, if the kernel has them, with small pages at the end.
  for (const std::size_t bytes : {10'000, (4 << 20) + 10'000}) {
    const auto identity = SharedSegment::create(bytes);
    EXPECT_TRUE(
        std::all_of(identity->data(), identity->data() + bytes, [](std::byte byte) { return byte == std::byte{0}; }));
    identity->data()[bytes - 1] = std::byte{42};
    const auto other = SharedSegment::open(of_another(identity->address()), bytes);
    EXPECT_NE(identity->data(), other->data());
    EXPECT_EQ(other->size(), bytes);
    EXPECT_EQ(other->data()[bytes - 1], std::byte{42});
    other->data()[0] = std::byte{7};
    EXPECT_EQ(identity->data()[0], std::byte{7});
  }
}

TEST(SharedSegment, IsRefusedFromAnotherNamespaceWithThePidOfThisProcess) {
  const auto identity = SharedSegment::create(100);
  SegmentAddress address = of_another(identity->address());
  ++address.process.namespace_inode;
  EXPECT_EQ(error_of(address), EXDEV);
  address.process.namespace_inode = 0;  // unknown
  EXPECT_EQ(error_of(address), EXDEV);
}

TEST(SharedSegment, IsRefusedFromAnotherFile) {
  const auto identity = SharedSegment::create(100);
  const auto another = SharedSegment::create(100);
  const SegmentAddress address = of_another(identity->address());
  EXPECT_EQ(error_of(address), 0);

  SegmentAddress wrong = address;
  wrong.descriptor = another->address().descriptor;
  EXPECT_EQ(error_of(wrong), ESTALE);
  wrong = address;
  ++wrong.bytes;
  EXPECT_EQ(error_of(wrong), ESTALE);
  const auto longer = SharedSegment::create(200);
  EXPECT_EQ(error_of(of_another(longer->address())), ESTALE) << "not the size that this rank expects";
  wrong = address;
  ++wrong.nonce[1];
  EXPECT_EQ(error_of(wrong), ESTALE);
  wrong = address;
  wrong.descriptor = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_EQ(error_of(wrong), ESTALE);
  ::close(wrong.descriptor);
  EXPECT_EQ(error_of(wrong), ENOENT);
}

// A rank may be a thread of this process. All that it sends may be forged.
TEST(SharedSegment, IsRefusedIfThisProcessHasNotCreatedIt) {
  static_assert(std::is_trivially_copyable_v<SegmentAddress>);
  auto segment = SharedSegment::create(100);
  const SegmentAddress address = segment->address();
  EXPECT_EQ(error_of(address), 0);
  SegmentAddress wrong = address;
  ++wrong.nonce[0];
  EXPECT_EQ(error_of(wrong), ESTALE);
  wrong = SharedSegment::create(200)->address();
  wrong.bytes = 100;
  EXPECT_EQ(error_of(wrong), ESTALE);
  segment.reset();
  EXPECT_EQ(error_of(address), ESTALE) << "it does not exist any more";
}

// Writes to a mapping beyond the end of a file that shrank are a signal.
TEST(SharedSegment, IsRefusedFromAFileWhoseLengthCanChange) {
  const auto segment = SharedSegment::create(100);
  SegmentAddress address = of_another(segment->address());
  EXPECT_NE(::ftruncate(address.descriptor, 10), 0);
  std::array<std::byte, 100 + sizeof(Nonce)> bytes{};
  std::memcpy(bytes.data() + 100, address.nonce.data(), sizeof(Nonce));
  const int file = ::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::pwrite(file, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  address.descriptor = file;
  EXPECT_EQ(error_of(address), ESTALE);
  ASSERT_EQ(::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  EXPECT_EQ(error_of(address), 0);
  ::close(file);
}

}  // namespace
}  // namespace tutti::comm::process_test
