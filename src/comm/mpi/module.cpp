// The module libtutti_mpi.so: the one file that sees MPI's headers.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/mpi/functions.h"

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
  std::size_t ended = 0;
  bool receives = false;
};

namespace {

constexpr std::size_t most_bytes = std::size_t{1} << 30;

// A communicator of tutti's own: errors are returned, whatever the program wants for MPI_COMM_WORLD.
MPI_Comm world = MPI_COMM_NULL;

const char* keep(std::string text) {
  thread_local std::string kept;
  kept = std::move(text);
  return kept.c_str();
}

const char* failure(const char* function, int code) {
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  text.resize(static_cast<std::size_t>(length));
  return keep(std::string(function) + ": " + text);
}

bool finalised() {
  int yes = 0;
  MPI_Finalized(&yes);
  return yes != 0;
}

bool initialised() {
  int yes = 0;
  MPI_Initialized(&yes);
  return yes != 0 && !finalised();
}

const char* library() {
  std::string text(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  return keep(text.substr(0, std::min(text.find_first_of(",\n"), static_cast<std::size_t>(length))));
}

const char* begin(MpiPlace* place) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (finalised()) return "MPI was finalised before, and cannot be started twice";
  int level = 0;
  if (initialised()) {
    MPI_Query_thread(&level);
  } else {
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    place->initialised_here = true;
  }
  if (level < MPI_THREAD_MULTIPLE) {
    return place->initialised_here
               ? "this MPI was built without MPI_THREAD_MULTIPLE, and tutti calls it from several threads"
               : "the program initialised MPI without MPI_THREAD_MULTIPLE: call MPI_Init_thread and ask for it, or "
                 "leave the initialising to tutti";
  }
  if (world == MPI_COMM_NULL) {
    if (const int code = MPI_Comm_dup(MPI_COMM_WORLD, &world); code != MPI_SUCCESS) {
      return failure("MPI_Comm_dup", code);
    }
    MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
  }
  MPI_Comm_rank(world, &place->rank);
  MPI_Comm_size(world, &place->size);
  int* highest = nullptr;
  int known = 0;
  MPI_Comm_get_attr(world, MPI_TAG_UB, &highest, &known);
  constexpr int least = 32767;  // that MPI promises
  place->highest_tag = known != 0 ? *highest : least;
  return nullptr;
}

const char* make_group(const int* members, int count, int tag, MpiGroup** group) {
  if (finalised()) return "MPI was finalised";
  MPI_Group everyone = MPI_GROUP_NULL;
  MPI_Group some = MPI_GROUP_NULL;
  MPI_Comm_group(world, &everyone);
  MPI_Group_incl(everyone, count, members, &some);
  MPI_Comm communicator = MPI_COMM_NULL;
  const int code = MPI_Comm_create_group(world, some, tag, &communicator);
  MPI_Group_free(&some);
  MPI_Group_free(&everyone);
  if (code != MPI_SUCCESS) return failure("MPI_Comm_create_group", code);
  MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
  *group = new MpiGroup{communicator};
  return nullptr;
}

void free_group(MpiGroup* group) {
  if (!finalised()) MPI_Comm_free(&group->communicator);
  delete group;
}

template <typename Start>
const char* start(MpiGroup* group, std::size_t size, const Start& part_of, MpiMessage** message) {
  if (finalised()) return "MPI was finalised";
  // Handed over first: what was started is in use even if the rest fails.
  auto& parts = (*message = new MpiMessage)->parts;
  parts.resize(std::max<std::size_t>((size + most_bytes - 1) / most_bytes, 1));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t offset = i * most_bytes;
    parts[i].bytes = static_cast<int>(std::min(size - offset, most_bytes));
    const int code = part_of(offset, parts[i], group->communicator);
    if (code != MPI_SUCCESS) return failure("starting a message", code);
  }
  return nullptr;
}

const char* send(MpiGroup* group, int peer, int tag, const std::byte* data, std::size_t size, MpiMessage** message) {
  const auto part_of = [&](std::size_t offset, MpiMessage::Part& part, MPI_Comm communicator) {
    return MPI_Isend(data + offset, part.bytes, MPI_BYTE, peer, tag, communicator, &part.request);
  };
  return start(group, size, part_of, message);
}

const char* receive(MpiGroup* group, int peer, int tag, std::byte* data, std::size_t size, MpiMessage** message) {
  const auto part_of = [&](std::size_t offset, MpiMessage::Part& part, MPI_Comm communicator) {
    return MPI_Irecv(data + offset, part.bytes, MPI_BYTE, peer, tag, communicator, &part.request);
  };
  const char* const why = start(group, size, part_of, message);
  if (*message != nullptr) (*message)->receives = true;
  return why;
}

/// Why a receive that has ended is not what was waited for; null where it is.
const char* wrong_receive(const MPI_Status& status, int bytes) {
  int cancelled = 0;
  MPI_Test_cancelled(&status, &cancelled);
  if (cancelled != 0) return "given up";
  int received = 0;
  MPI_Get_count(&status, MPI_BYTE, &received);
  if (received == bytes) return nullptr;
  return keep("a message of " + std::to_string(received) + " bytes came where " + std::to_string(bytes) +
              " were expected");
}

MpiFunctions::State look(MpiMessage* message, const char** why) {
  using State = MpiFunctions::State;
  *why = finalised() ? "MPI was finalised" : nullptr;
  while (*why == nullptr && message->ended < message->parts.size()) {
    auto& part = message->parts[message->ended];
    int done = 0;
    MPI_Status status;
    if (const int code = MPI_Test(&part.request, &done, &status); code != MPI_SUCCESS) {
      *why = failure("a message failed", code);
    } else if (done == 0) {
      return State::pending;
    } else if (message->receives) {
      *why = wrong_receive(status, part.bytes);
    }
    ++message->ended;
  }
  return *why == nullptr ? State::done : State::failed;
}

void cancel(MpiMessage* message) {
  if (!message->receives || finalised()) return;
  for (auto& part : message->parts) {
    if (part.request != MPI_REQUEST_NULL) MPI_Cancel(&part.request);
  }
}

bool is_idle(MpiMessage* message) {
  if (finalised()) return true;
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

void finish(long milliseconds) {
  if (finalised()) return;
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

extern "C" __attribute__((visibility("default"))) const MpiFunctions* tutti_mpi_functions() {
  static const MpiFunctions functions{.version = MpiFunctions::this_version,
                                      .library = &library,
                                      .initialised = &initialised,
                                      .begin = &begin,
                                      .make_group = &make_group,
                                      .free_group = &free_group,
                                      .send = &send,
                                      .receive = &receive,
                                      .look = &look,
                                      .cancel = &cancel,
                                      .is_idle = &is_idle,
                                      .free_message = &free_message,
                                      .finish = &finish};
  return &functions;
}

}  // namespace tutti::comm
