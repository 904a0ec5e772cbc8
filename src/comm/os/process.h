#pragma once
// The processes of a node: telling them apart, and seeing whether another one still runs.
#include <sys/types.h>

#include <array>
#include <cstdint>

namespace tutti::comm {

/// A number that nobody else has.
using Nonce = std::array<std::uint64_t, 2>;
/// Throws std::system_error where the system gives no random numbers.
Nonce random_nonce();

/// Of one process. Numbers of processes mean something in their own namespace only, and two containers may each have a
/// process 1; so the namespace and a random number go with it. Travels between ranks as bytes.
struct ProcessIdentity {
  pid_t pid = 0;
  std::uint64_t namespace_device = 0;
  std::uint64_t namespace_inode = 0;  ///< 0 where it cannot be told
  std::uint64_t start_time = 0;       ///< in ticks of its namespace's clock; 0 where it cannot be told
  std::uint64_t time_namespace = 0;   ///< inode of that namespace
  Nonce nonce{};

  /// Whether both are the same process.
  bool operator==(const ProcessIdentity& other) const { return nonce == other.nonce; }
  /// Whether the other's number means the same process here.
  bool shares_pid_namespace_with(const ProcessIdentity& other) const {
    return namespace_inode != 0 && namespace_inode == other.namespace_inode &&
           namespace_device == other.namespace_device;
  }
};

/// That of the calling process; the same at each call. Throws std::system_error without random numbers.
const ProcessIdentity& this_process();

enum class ProcessState {
  running,
  stopped,  ///< by a signal (SIGSTOP, Ctrl+Z); one that a debugger holds is running
  exited,   ///< also where its parent has not reaped it yet
};

/// Looks at a process of the own namespace. It keeps no descriptor: a job has as many of these as ranks on the node.
/// Thread safe.
class ProcessProbe {
 public:
  /// Looks when that process started.
  explicit ProcessProbe(pid_t process);
  /// Does not look: of N ranks each watches N.
  explicit ProcessProbe(const ProcessIdentity& process);

  /// Reads a file of /proc. A process that cannot be looked at counts as running.
  ProcessState state() const;

 private:
  pid_t pid_;
  std::uint64_t start_time_ = 0;  // by the system's clock: the number may be another process's by now; 0: not known
};

}  // namespace tutti::comm
