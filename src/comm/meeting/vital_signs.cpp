#include "comm/meeting/vital_signs.h"

#include <utility>

#include "comm/meeting/doorbell.h"
#include "comm/meeting/silence.h"
#include "comm/meeting/store_bytes.h"

namespace tutti::comm {
namespace {

constexpr const char* news_key = "news";
// A good-bye may still be on its way when the process has ended already.
constexpr int refusals_until_sure = 2;

// A refusal says something of those only that could be reached before: a firewall may refuse too.
std::optional<SocketAddress> bell_that_is_heard(const Crews& crews, int first) {
  const auto& bell = crews.introductions[static_cast<std::size_t>(first)].bell;
  return bell && crews.is_alone(first) && ring(*bell) == Ring::heard ? bell : std::nullopt;
}

}  // namespace

VitalSigns::VitalSigns(c10::intrusive_ptr<c10d::Store> store, int rank, const std::vector<int>& node_of_rank,
                       const Crews& crews)
    : store_(std::move(store)),
      size_(static_cast<int>(node_of_rank.size())),
      all_pairs_(pairs_of_crews(node_of_rank, crews.first)) {
  const int own = crews.first[static_cast<std::size_t>(rank)];
  for (const Pair& pair : all_pairs_) {
    if (!pair.has(own)) continue;
    const int partner = pair.partner_of(own);
    own_pairs_.push_back({.pair = pair, .bell = bell_that_is_heard(crews, partner)});
    watched_.push_back(partner);
  }
}

VitalSigns::Look VitalSigns::beat(std::uint32_t own_beats, bool rings) {
  Look look;
  bool has_news = false;
  for (std::size_t i = 0; i < own_pairs_.size(); ++i) {
    Watched& watched = own_pairs_[i];
    const PairNumber number(store_->add(watched.pair.key(), PairNumber::beat));
    look.beats.push_back(number.has_good_bye() ? has_left : number.beats() - own_beats);
    if (std::exchange(watched.news_so_far, number.news_so_far()) != number.news_so_far()) has_news = true;
    if (!rings || !watched.bell || number.has_good_bye()) continue;
    watched.refusals = ring(*watched.bell) == Ring::refused ? watched.refusals + 1 : 0;
    if (watched.refusals == refusals_until_sure) look.ended.push_back(watched_[i]);
  }
  if (has_news) look.news = News::from_entries(as_text(store_->get(news_key)), size_);
  return look;
}

void VitalSigns::tell(const News& news) {
  store_->append(news_key, as_bytes(news.to_entries()));
  for (const Pair& pair : all_pairs_) store_->add(pair.key(), PairNumber::news);
}

void VitalSigns::say_good_bye() {
  for (const Watched& watched : own_pairs_) store_->add(watched.pair.key(), PairNumber::good_bye);
}

}  // namespace tutti::comm
