#include "comm/members/gate.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/members/loopback_user.h"
#include "comm/members/waiting_room.h"
#include "core/thread_name.h"
#include "tutti/core/logging.h"

namespace tutti::comm {
namespace {

using GateClock = std::chrono::steady_clock;

// Where the process has no descriptor left, accepting fails at once, again and again.
constexpr auto pause_without_descriptors = std::chrono::milliseconds(100);

}  // namespace

class Gate::Keeper {
 public:
  explicit Keeper(Plan plan) : plan_(std::move(plan)), bell_(::eventfd(0, EFD_CLOEXEC)) {
    if (!bell_.is_open()) throw std::system_error(errno, std::generic_category(), "eventfd");
    thread_ = std::thread([this] {
      name_this_thread("tutti-gate");
      run();
    });
  }
  ~Keeper() {
    const std::uint64_t one = 1;
    while (::write(bell_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
    }
    thread_.join();
  }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  const Plan& plan() const { return plan_; }

 private:
  void run() {
    std::vector<pollfd> wishes;
    for (;;) {
      const auto now = GateClock::now();
      turn_away(now);
      wishes.assign({{.fd = bell_.get(), .events = POLLIN, .revents = 0},
                     {.fd = has_place(now) ? plan_.listening.get() : -1, .events = POLLIN, .revents = 0}});
      for (const Passage& passage : passages_) passage.wish(wishes);
      ::poll(wishes.data(), wishes.size(), milliseconds_to_wait(now));
      if (wishes[0].revents != 0) return;
      if (wishes[1].revents != 0) let_in();
      work();
    }
  }

  std::vector<Passage::Time> waiting_since() const {
    std::vector<Passage::Time> since;
    for (const Passage& passage : passages_) {
      if (passage.is_proving()) since.push_back(passage.since());
    }
    return since;  // in the order in which they came
  }

  /// A gate's strangers only: a porter's connections are this process's own.
  void turn_away(Passage::Time now) {
    if (plan_.proof != Passage::Proof::asked) return;
    auto count = WaitingRoom::turned_away(waiting_since(), now);
    std::erase_if(passages_, [&](const Passage& passage) {
      if (count == 0 || !passage.is_proving()) return false;
      --count;
      return true;
    });
  }

  bool has_place(Passage::Time now) const {
    return now >= accepts_again_ && WaitingRoom::has_place(waiting_since().size());
  }

  int milliseconds_to_wait(Passage::Time now) const {
    auto wait = GateClock::duration(std::chrono::minutes(1));
    if (now < accepts_again_) wait = std::min(wait, accepts_again_ - now);
    const auto since = waiting_since();
    if (!since.empty()) wait = std::min(wait, since.front() + WaitingRoom::longest(since.size()) - now);
    for (const Passage& passage : passages_) {
      if (passage.next_try()) wait = std::min(wait, *passage.next_try() - now);
    }
    return static_cast<int>(std::max<std::int64_t>(std::chrono::ceil<std::chrono::milliseconds>(wait).count(), 0));
  }

  void let_in() {
    const auto now = GateClock::now();
    while (has_place(now)) {
      errno = 0;
      auto socket = accept_from(plan_.listening);
      if (!socket) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          accepts_again_ = now + pause_without_descriptors;
        }
        return;
      }
      if (plan_.proof == Passage::Proof::given && !is_of_this_user(*socket)) continue;
      passages_.emplace_back(std::move(*socket), plan_.onward, plan_.proof, plan_.secret, plan_.subject, now);
    }
  }

  void work() {
    const auto now = GateClock::now();
    for (auto passage = passages_.begin(); passage != passages_.end();) {
      if (passage->work(now)) {
        ++passage;
        continue;
      }
      if (passage->has_failed()) report(*passage);
      passage = passages_.erase(passage);
    }
  }

  // The first one only: a log must not grow with what strangers do.
  void report(const Passage& passage) {
    if (std::exchange(has_reported_, true) || plan_.proof != Passage::Proof::asked) return;
    log_.warning("somebody at " + describe_peer(passage.near()) +
                 " does not know the job's secret and was turned away; the next ones will be without a word");
  }

  const Plan plan_;
  const Logger log_;
  const FileDescriptor bell_;
  std::list<Passage> passages_;
  Passage::Time accepts_again_{};
  bool has_reported_ = false;
  std::thread thread_;
};

Gate::Gate(Plan plan) : keeper_(std::make_unique<Keeper>(std::move(plan))) {}
Gate::~Gate() = default;

const SocketAddress& Gate::onward() const {
  return keeper_->plan().onward;
}

}  // namespace tutti::comm
