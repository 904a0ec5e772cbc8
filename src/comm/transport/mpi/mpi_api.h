#pragma once
// What the module libtutti_mpi.so offers: MPI's messages as plain functions. That module alone is linked against MPI,
// and no C++ object crosses the border.
#include <cstddef>

namespace tutti::comm {

struct MpiGroup;    // an MPI communicator
struct MpiMessage;  // a send or a receive in flight

struct MpiWorld {
  int rank = 0;
  int size = 0;
  int highest_tag = 0;
  bool initialized_here = false;  ///< so that finalize() is called when the process ends
};

/// Thread safe, but for two calls at once about one message. Functions that return text return null where all went
/// well; the text is valid until the thread's next call. Ranks are those of MPI_COMM_WORLD or of the group.
struct MpiApi {
  static constexpr int this_version = 2;
  enum class State { pending, done, failed };

  int version;
  /// Whether MPI is initialised and not finalised.
  bool (*is_initialized)();
  /// Initialises MPI unless it is initialised. Every rank must call it.
  const char* (*init)(MpiWorld* world_info);
  /// Every member must call it, with the same tag. Blocks.
  const char* (*make_group)(const int* members, int count, int tag, MpiGroup** group);
  /// All messages have ended, here and on the other members.
  void (*free_group)(MpiGroup* group);
  /// Starts a send of `data`, or a receive into it. Sets `message` even if it returns an error after MPI has begun to
  /// use `data`.
  const char* (*start)(MpiGroup* group, bool receives, int peer, int tag, std::byte* data, std::size_t size,
                       MpiMessage** message);
  /// Looks once. After `failed`, `error` says what happened and the memory may still be in use.
  State (*test)(MpiMessage* message, const char** error);
  /// Asks MPI to cancel a receive. MPI cannot cancel a send.
  void (*cancel)(MpiMessage* message);
  /// Whether MPI no longer uses the message's memory, however the message ended.
  bool (*is_idle)(MpiMessage* message);
  /// Of an idle message.
  void (*free_message)(MpiMessage* message);
  /// Finalises MPI once all ranks have called it. Does nothing if they have not called it within `milliseconds`; a
  /// negative number waits without a timeout.
  void (*finalize)(long milliseconds);
};

/// The module's one symbol: a function that returns the table.
inline constexpr const char* mpi_entry = "tutti_mpi_api";

}  // namespace tutti::comm
