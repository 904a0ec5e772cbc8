#include "comm/meeting/vital_signs.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "comm/meeting/silence.h"
#include "comm/meeting/store_bytes.h"

namespace tutti::comm {
namespace {

constexpr const char* news_key = "news";

ProcessIdentity identity_in(const std::string& text) {
  ProcessIdentity process;
  std::istringstream words(text);
  words >> process.number >> process.namespace_device >> process.namespace_inode;
  return words ? process : ProcessIdentity{};
}

}  // namespace

std::string VitalSigns::own_process() {
  const ProcessIdentity& process = this_process();
  std::ostringstream text;
  text << process.number << ' ' << process.namespace_device << ' ' << process.namespace_inode;
  return text.str();
}

// Ranks of a node that cannot see one another's processes, in containers of their own, are pairs like those of several
// nodes: both know it of one another.
VitalSigns::VitalSigns(c10::intrusive_ptr<c10d::Store> store, int rank, const std::vector<int>& node_of_rank,
                       const std::vector<std::string>& processes)
    : store_(std::move(store)),
      rank_(rank),
      size_(static_cast<int>(node_of_rank.size())),
      all_pairs_(pairs_between_nodes(node_of_rank)),
      next_(next_on_node(rank, node_of_rank)) {
  const auto watch = [&](const Pair& pair) {
    own_pairs_.push_back({.pair = pair});
    watched_.push_back(pair.partner_of(rank));
  };
  for (const Pair& pair : all_pairs_) {
    if (pair.has(rank)) watch(pair);
  }
  for (const Pair& pair : pairs_inside_nodes(node_of_rank)) {
    all_pairs_.push_back(pair);
    if (!pair.has(rank)) continue;
    const auto partner = identity_in(processes.at(static_cast<std::size_t>(pair.partner_of(rank))));
    const bool seen = identity_in(processes.at(static_cast<std::size_t>(rank))).sees(partner);
    if (!seen) watch(pair);
    if (seen && pair.partner_of(rank) == next_) neighbour_.emplace(partner.number);
  }
  if (neighbour_) watched_.push_back(next_);
}

VitalSigns::Look VitalSigns::beat() {
  Look look;
  bool has_news = false;
  for (Watched& watched : own_pairs_) {
    const PairNumber number(store_->add(watched.pair.key(), PairNumber::beat));
    ++watched.own_beats;
    look.beats.push_back(number.has_good_bye() ? has_left : number.beats() - watched.own_beats);
    if (std::exchange(watched.news_so_far, number.news_so_far()) != number.news_so_far()) has_news = true;
  }
  if (neighbour_) {
    look.beats.push_back(look_at_neighbour());
    if (looks_at_ended_ == looks_until_sure) look.ended = next_;
  }
  if (has_news) look.news = News::from_entries(as_text(store_->get(news_key)), size_);
  return look;
}

std::int64_t VitalSigns::look_at_neighbour() {
  const auto state = neighbour_->state();
  if (state == ProcessState::ended) {
    const Pair pair{.one = std::min(rank_, next_), .other = std::max(rank_, next_)};
    if (PairNumber(store_->add(pair.key(), 0)).has_good_bye()) return has_left;
    ++looks_at_ended_;
  } else {
    looks_at_ended_ = 0;
    if (state == ProcessState::running) ++neighbour_beats_;
  }
  return neighbour_beats_;
}

void VitalSigns::tell(const News& news) {
  store_->append(news_key, as_bytes(news.to_entries()));
  for (const Pair& pair : all_pairs_) store_->add(pair.key(), PairNumber::news);
}

void VitalSigns::say_good_bye() {
  for (const Pair& pair : all_pairs_) {
    if (pair.has(rank_)) store_->add(pair.key(), PairNumber::good_bye);
  }
}

}  // namespace tutti::comm
