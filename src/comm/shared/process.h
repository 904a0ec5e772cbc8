#pragma once
// The processes of a node: telling them apart, and seeing whether another one still runs.
#include <sys/types.h>

#include <array>
#include <cstdint>

#include "core/file_descriptor.h"

namespace tutti::comm {

/// A number that nobody else has.
using Nonce = std::array<std::uint64_t, 2>;
/// Throws std::system_error where the system gives no random numbers.
Nonce random_nonce();

/// Of one process. Numbers of processes mean something in their own namespace only, and two containers may each have a
/// process 1; so the namespace and a random number go with it. Travels between ranks as bytes.
struct ProcessIdentity {
  pid_t number = 0;
  std::uint64_t namespace_device = 0;
  std::uint64_t namespace_inode = 0;  ///< 0 where it cannot be told
  Nonce nonce{};

  /// Whether both are the same process.
  bool is(const ProcessIdentity& other) const { return nonce == other.nonce; }
  /// Whether the other's number means the same process here.
  bool sees(const ProcessIdentity& other) const {
    return namespace_inode != 0 && namespace_inode == other.namespace_inode &&
           namespace_device == other.namespace_device;
  }
};

/// That of the calling process; the same at each call. Throws std::system_error without random numbers.
const ProcessIdentity& this_process();

/// Tells whether a process of the own namespace still runs. Thread safe.
class ProcessWatch {
 public:
  /// Where no descriptor can be had (an old kernel, a filter of system calls, too many open files), the number alone
  /// is asked for: a process that has ended then counts as running until its parent has noticed.
  explicit ProcessWatch(pid_t process);

  bool running() const;
  /// Whether it was stopped by a signal (SIGSTOP, Ctrl+Z). One that a debugger holds is not, nor one that cannot be
  /// looked at.
  bool stopped() const;
  bool has_descriptor() const { return descriptor_.is_open(); }

 private:
  pid_t process_;
  bool ended_ = false;
  FileDescriptor descriptor_;  // a pidfd: readable when the process has ended
};

}  // namespace tutti::comm
