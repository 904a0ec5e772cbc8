#pragma once
#include "core/file_descriptor.h"

namespace tutti::comm {

/// Whether the process at the other end of this connection over IPv4's loopback runs as this one's user, as
/// /proc/net/tcp has it. No where that cannot be told.
bool peer_has_same_uid(const FileDescriptor& socket);

}  // namespace tutti::comm
