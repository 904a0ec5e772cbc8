#pragma once
// The processes of a node: their identities, and whether another process still runs.
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/random.h"

namespace tutti::comm {

/// The identity of one process. A PID is valid in its own namespace only: two containers may each have a process 1.
/// Therefore the identity also holds the namespace and a nonce. It is trivially copyable and is sent between ranks as
/// bytes.
struct ProcessIdentity {
  pid_t pid = 0;
  std::uint64_t namespace_device = 0;
  std::uint64_t namespace_inode = 0;  ///< of the PID namespace; 0 if unknown
  std::uint64_t start_time = 0;       ///< in clock ticks of its time namespace; 0 if unknown
  std::uint64_t time_namespace = 0;   ///< inode of the time namespace; 0 if unknown
  Nonce nonce{};

  /// True if both are the same process.
  bool operator==(const ProcessIdentity& other) const { return nonce == other.nonce; }
  /// True if both processes are in the same PID namespace, so that `other.pid` is valid here.
  bool shares_pid_namespace_with(const ProcessIdentity& other) const {
    return namespace_inode != 0 && namespace_inode == other.namespace_inode &&
           namespace_device == other.namespace_device;
  }
};

/// The identity of the calling process; equal at every call. Throws std::system_error if the system provides no random
/// numbers.
const ProcessIdentity& this_process();

/// What /proc tells of a process or of one of its threads.
struct ProcStat {
  std::string name;
  char state = '?';              ///< R, S, D, T, Z, X, ... (proc_pid_stat(5))
  std::uint64_t start_time = 0;  ///< in clock ticks since boot
};
/// Reads the file "stat" of /proc/PID or /proc/PID/task/TID. nullopt if there is none or it cannot be read.
std::optional<ProcStat> read_proc_stat(const std::string& folder);

/// Whether the content of /proc/PID/status says that the process writes a core file. No I/O.
bool reports_core_dump(std::string_view status);

/// Tells whether a process in the same PID namespace has exited. A probe holds no file descriptor, because each rank
/// has one probe for every rank of its node. Thread safe.
class ProcessProbe {
 public:
  /// Takes the start time from `process` and reads no file: N ranks create N * N probes.
  explicit ProcessProbe(const ProcessIdentity& process);

  /// Reads files of /proc. Also true for a process that its parent has not reaped yet, and one that writes a core file.
  /// False if the files cannot be read.
  bool has_exited() const;

 private:
  pid_t pid_;
  std::uint64_t start_time_ = 0;  // tells a reused PID from the original process; 0 if unknown
};

}  // namespace tutti::comm
