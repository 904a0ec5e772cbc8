// Ranks: none. MpiEndpoint over functions of this file in place of MPI.
#include "comm/transport/mpi/mpi_endpoint.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <thread>

namespace tutti::comm {

struct MpiMessage {
  MpiApi::State state = MpiApi::State::pending;
};

namespace mpi_endpoint_test {
namespace {

std::deque<MpiMessage> messages;    // those that were started, in order
std::size_t number_of_failing = 0;  // the message that cannot be started; 0: none

MpiApi make_api() {
  messages.clear();
  number_of_failing = 0;
  MpiApi api{};
  api.start = [](MpiGroup*, bool, int, int, std::byte*, std::size_t, MpiMessage** message) -> const char* {
    if (messages.size() + 1 == number_of_failing) return "no memory";
    *message = &messages.emplace_back();
    return nullptr;
  };
  api.test = [](MpiMessage* message, const char**) { return message->state; };
  api.free_message = [](MpiMessage*) {};
  return api;
}

TEST(MpiEndpoint, AFailedStartKeepsTheMemoryOfEarlierReceives) {
  const MpiApi api = make_api();
  number_of_failing = 3;
  const std::size_t before = OrphanedRequests::of_process()->kept();
  EXPECT_THROW(MpiEndpoint(api, nullptr, MpiTags(32767), 0, 4), TransferError);
  EXPECT_EQ(OrphanedRequests::of_process()->kept(), before + 2);
}

// A thread that looks whether peers have exited sees the close message long before the last receive is tested.
TEST(MpiEndpoint, ALongMessageOfAPeerThatHasClosedCompletesInItsSecondTest) {
  const MpiApi api = make_api();
  MpiEndpoint endpoint(api, nullptr, MpiTags(32767), 0, 2);
  EXPECT_FALSE(endpoint.has_closed(1));
  messages.front().state = MpiApi::State::done;
  while (!endpoint.has_closed(1)) std::this_thread::yield();
  const auto memory = std::make_shared<std::byte>();
  const auto request = endpoint.post(false, 1, Tag{}, {memory.get(), 1, memory});
  EXPECT_FALSE(endpoint.is_complete(request));
  messages.back().state = MpiApi::State::done;
  EXPECT_TRUE(endpoint.is_complete(request));
}

}  // namespace
}  // namespace mpi_endpoint_test
}  // namespace tutti::comm
