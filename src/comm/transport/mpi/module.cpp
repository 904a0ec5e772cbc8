// The module libtutti_mpi.so: the one file that sees MPI's headers.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/transport/mpi/mpi_api.h"

namespace tutti::comm {

struct MpiGroup {
  MPI_Comm communicator = MPI_COMM_NULL;
};

// MPI counts bytes in an int: what is longer goes in parts, which arrive in order.
struct MpiMessage {
  struct Part {
    MPI_Request request = MPI_REQUEST_NULL;
    int bytes = 0;
  };
  std::vector<Part> parts;
  std::size_t completed_parts = 0;
  bool receives = false;
};

namespace {

constexpr std::size_t max_part_bytes = std::size_t{1} << 30;

// A communicator of tutti's own: errors are returned, whatever the program wants for MPI_COMM_WORLD.
MPI_Comm world = MPI_COMM_NULL;

const char* keep_text(std::string text) {
  thread_local std::string kept;
  kept = std::move(text);
  return kept.c_str();
}

const char* mpi_error(const char* function, int code) {
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  text.resize(static_cast<std::size_t>(length));
  return keep_text(std::string(function) + ": " + text);
}

bool is_finalized() {
  int yes = 0;
  MPI_Finalized(&yes);
  return yes != 0;
}

bool is_initialized() {
  int yes = 0;
  MPI_Initialized(&yes);
  return yes != 0 && !is_finalized();
}

const char* init(MpiWorld* world_info) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (is_finalized()) return "MPI was finalised before, and cannot be started twice";
  int level = 0;
  if (is_initialized()) {
    MPI_Query_thread(&level);
  } else {
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    world_info->initialized_here = true;
  }
  if (level < MPI_THREAD_MULTIPLE) {
    return world_info->initialized_here
               ? "this MPI was built without MPI_THREAD_MULTIPLE, and tutti calls it from several threads"
               : "the program initialised MPI without MPI_THREAD_MULTIPLE: call MPI_Init_thread and ask for it, or "
                 "leave the initialising to tutti";
  }
  if (world == MPI_COMM_NULL) {
    if (const int code = MPI_Comm_dup(MPI_COMM_WORLD, &world); code != MPI_SUCCESS) {
      return mpi_error("MPI_Comm_dup", code);
    }
    MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
  }
  MPI_Comm_rank(world, &world_info->rank);
  MPI_Comm_size(world, &world_info->size);
  int* tag_ub = nullptr;
  int has_tag_ub = 0;
  MPI_Comm_get_attr(world, MPI_TAG_UB, &tag_ub, &has_tag_ub);
  constexpr int min_tag_ub = 32767;  // that MPI promises
  world_info->highest_tag = has_tag_ub != 0 ? *tag_ub : min_tag_ub;
  return nullptr;
}

const char* make_group(const int* members, int count, int tag, MpiGroup** group) {
  if (is_finalized()) return "MPI was finalised";
  MPI_Group world_group = MPI_GROUP_NULL;
  MPI_Group member_group = MPI_GROUP_NULL;
  MPI_Comm_group(world, &world_group);
  MPI_Group_incl(world_group, count, members, &member_group);
  MPI_Comm communicator = MPI_COMM_NULL;
  const int code = MPI_Comm_create_group(world, member_group, tag, &communicator);
  MPI_Group_free(&member_group);
  MPI_Group_free(&world_group);
  if (code != MPI_SUCCESS) return mpi_error("MPI_Comm_create_group", code);
  MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
  *group = new MpiGroup{communicator};
  return nullptr;
}

void free_group(MpiGroup* group) {
  if (!is_finalized()) MPI_Comm_free(&group->communicator);
  delete group;
}

const char* start(MpiGroup* group, bool receives, int peer, int tag, std::byte* data, std::size_t size,
                  MpiMessage** message) {
  if (is_finalized()) return "MPI was finalised";
  // Handed over first: what was started is in use even if the rest fails.
  *message = new MpiMessage;
  (*message)->receives = receives;
  auto& parts = (*message)->parts;
  parts.resize(std::max<std::size_t>((size + max_part_bytes - 1) / max_part_bytes, 1));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    auto& [request, bytes] = parts[i];
    std::byte* const begin = data + i * max_part_bytes;
    bytes = static_cast<int>(std::min(size - i * max_part_bytes, max_part_bytes));
    const int code = receives ? MPI_Irecv(begin, bytes, MPI_BYTE, peer, tag, group->communicator, &request)
                              : MPI_Isend(begin, bytes, MPI_BYTE, peer, tag, group->communicator, &request);
    if (code != MPI_SUCCESS) return mpi_error("starting a message", code);
  }
  return nullptr;
}

/// Why a receive that has ended is not what was waited for; null where it is.
const char* receive_error(const MPI_Status& status, int bytes) {
  int cancelled = 0;
  MPI_Test_cancelled(&status, &cancelled);
  if (cancelled != 0) return "cancelled";
  int received = 0;
  MPI_Get_count(&status, MPI_BYTE, &received);
  if (received == bytes) return nullptr;
  return keep_text("a message of " + std::to_string(received) + " bytes came where " + std::to_string(bytes) +
                   " were expected");
}

MpiApi::State test(MpiMessage* message, const char** error) {
  using State = MpiApi::State;
  *error = is_finalized() ? "MPI was finalised" : nullptr;
  while (*error == nullptr && message->completed_parts < message->parts.size()) {
    auto& part = message->parts[message->completed_parts];
    int done = 0;
    MPI_Status status;
    if (const int code = MPI_Test(&part.request, &done, &status); code != MPI_SUCCESS) {
      *error = mpi_error("a message failed", code);
    } else if (done == 0) {
      return State::pending;
    } else if (message->receives) {
      *error = receive_error(status, part.bytes);
    }
    ++message->completed_parts;
  }
  return *error == nullptr ? State::done : State::failed;
}

void cancel(MpiMessage* message) {
  if (!message->receives || is_finalized()) return;
  for (auto& part : message->parts) {
    if (part.request != MPI_REQUEST_NULL) MPI_Cancel(&part.request);
  }
}

bool is_idle(MpiMessage* message) {
  if (is_finalized()) return true;
  bool idle = true;
  for (auto& part : message->parts) {
    if (part.request == MPI_REQUEST_NULL) continue;
    int done = 0;
    MPI_Test(&part.request, &done, MPI_STATUS_IGNORE);
    idle = idle && part.request == MPI_REQUEST_NULL;
  }
  return idle;
}

void free_message(MpiMessage* message) {
  delete message;
}

void finalize(long milliseconds) {
  if (is_finalized()) return;
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::milliseconds(milliseconds);
  MPI_Request request = MPI_REQUEST_NULL;
  if (world == MPI_COMM_NULL || MPI_Ibarrier(world, &request) != MPI_SUCCESS) return;
  for (int done = 0;;) {
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return;
    if (done != 0) break;
    if (milliseconds >= 0 && Clock::now() > deadline) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  MPI_Finalize();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const MpiApi* tutti_mpi_api() {
  static const MpiApi api{.version = MpiApi::this_version,
                          .is_initialized = &is_initialized,
                          .init = &init,
                          .make_group = &make_group,
                          .free_group = &free_group,
                          .start = &start,
                          .test = &test,
                          .cancel = &cancel,
                          .is_idle = &is_idle,
                          .free_message = &free_message,
                          .finalize = &finalize};
  return &api;
}

}  // namespace tutti::comm
