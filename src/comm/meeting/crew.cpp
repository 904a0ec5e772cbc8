#include "comm/meeting/crew.h"

#include <charconv>
#include <cstring>
#include <new>
#include <set>
#include <sstream>
#include <system_error>
#include <type_traits>
#include <utility>

#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

static_assert(std::is_trivially_copyable_v<SegmentAddress>, "it travels as bytes");

constexpr const char* introductions_topic = "pulse";
constexpr const char* crews_topic = "pulse/crews";

/// nullptr where this machine gives none to share.
std::shared_ptr<SharedSegment> create_board(int size) {
  try {
    return SharedSegment::create(CrewBoard::bytes(size));
  } catch (const std::system_error&) {
    return nullptr;
  }
}

std::shared_ptr<SharedSegment> open_board(const SegmentAddress& address) {
  try {
    return address.descriptor < 0 ? nullptr : SharedSegment::open(address);
  } catch (const std::system_error&) {
    return nullptr;
  }
}

std::shared_ptr<void> memory_of(const std::shared_ptr<SharedSegment>& segment, int size) {
  if (segment) return {segment, segment->data()};
  constexpr auto alignment = std::align_val_t(64);
  const auto bytes = CrewBoard::bytes(size);
  std::shared_ptr<void> memory(::operator new(bytes, alignment), [](void* own) { ::operator delete(own, alignment); });
  std::memset(memory.get(), 0, bytes);
  return memory;
}

int rank_in(const std::string& text, int size) {
  int rank = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error == std::errc() && end == text.data() + text.size() && rank >= 0 && rank < size) return rank;
  throw PeerFailure("A rank of another program came to the store.", {});
}

}  // namespace

std::string CrewIntroduction::to_text() const {
  std::string text(reinterpret_cast<const char*>(&board), sizeof(board));
  if (bell) text += bell->host + " " + std::to_string(bell->port);
  return text;
}

CrewIntroduction CrewIntroduction::from_text(const std::string& text) {
  CrewIntroduction introduction;
  if (text.size() < sizeof(introduction.board)) return introduction;
  std::memcpy(&introduction.board, text.data(), sizeof(introduction.board));
  std::istringstream words(text.substr(sizeof(introduction.board)));
  SocketAddress bell;
  if (words >> bell.host >> bell.port) introduction.bell = bell;
  return introduction;
}

std::vector<int> first_seen(const std::vector<int>& node_of_rank, const std::vector<CrewIntroduction>& introductions) {
  std::vector<int> first;
  for (std::size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    std::size_t other = 0;
    const auto sees = [&] {
      return node_of_rank[other] == node_of_rank[rank] &&
             introductions[rank].board.process.sees(introductions[other].board.process);
    };
    while (other < rank && !sees()) ++other;
    first.push_back(static_cast<int>(other));
  }
  return first;
}

int Crews::count() const {
  return static_cast<int>(std::set<int>(first.begin(), first.end()).size());
}

std::vector<int> Crews::members(int first_rank) const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < first.size(); ++rank) {
    if (first[rank] == first_rank) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

// A rank that cannot map the board of the first one says so to all, and is a crew of its own.
Crews meet_crews(const Rendezvous& rendezvous, int rank, const std::vector<int>& node_of_rank,
                 const std::optional<SocketAddress>& bell, std::chrono::milliseconds timeout) {
  const auto size = static_cast<int>(node_of_rank.size());
  const auto own = create_board(size);
  CrewIntroduction introduction{.board = {.process = this_process()}, .bell = bell};
  if (own) introduction.board = own->address();

  Crews crews;
  for (const auto& text : exchange(rendezvous, introductions_topic, rank, size, introduction.to_text(), timeout)) {
    crews.introductions.push_back(CrewIntroduction::from_text(text));
  }
  int first = first_seen(node_of_rank, crews.introductions)[static_cast<std::size_t>(rank)];
  auto board = first == rank ? own : open_board(crews.introductions[static_cast<std::size_t>(first)].board);
  if (!board) {
    first = rank;
    board = own;
  }
  for (const auto& text : exchange(rendezvous, crews_topic, rank, size, std::to_string(first), timeout)) {
    crews.first.push_back(rank_in(text, size));
  }
  if (own) own->close_descriptor();
  crews.board = std::make_shared<CrewBoard>(memory_of(board, size), size);
  return crews;
}

}  // namespace tutti::comm
