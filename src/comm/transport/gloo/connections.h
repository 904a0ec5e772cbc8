#pragma once
// The connections that a ConnectionMux sends over.
#include <memory>

#include "comm/transport/transport.h"

namespace tutti::comm {

/// A message in flight. Keep one that has not ended until the connections are closed: destroying it would block them.
class PendingMessage {
 public:
  virtual ~PendingMessage() = default;
  /// Blocks until it has ended (true) or abort() was called (false, also where it has just ended). Throws when the
  /// connection is broken. May be called again after false.
  virtual bool wait() = 0;
  /// Wakes the thread in wait(), or the next one that calls it. Call from any thread.
  virtual void abort() noexcept = 0;
};

/// Connections to the other ranks of a job, each made when both ranks post the first message to one another. Thread
/// safe.
class Connections {
 public:
  virtual ~Connections() = default;
  /// The first one to a peer blocks until it is connected; it may be called beside others. Throws when the connection
  /// is broken or cannot be made. `tag` has 31 bits; lengths that differ under one tag end the process.
  virtual std::unique_ptr<PendingMessage> post(bool send, int peer, int tag, const Buffer& block) = 0;
  /// Ends all messages in flight. After it their memory is not accessed, and no message may be posted.
  virtual void close() noexcept = 0;
};

}  // namespace tutti::comm
