#include "comm/channel.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include "comm/engine/describe.h"
#include "comm/engine/pause.h"
#include "comm/meeting/blame.h"
#include "tutti/core/error.h"
#include "tutti/detail/core/called_from.h"

namespace tutti::comm {
namespace {

Standing::Reason reason_of(const TransferError& error) {
  switch (error.kind()) {
    case TransferError::Kind::timeout:
      return Standing::Reason::timeout;
    case TransferError::Kind::stopped:
      return Standing::Reason::stopped;
    case TransferError::Kind::silent:
      return Standing::Reason::silent;
    case TransferError::Kind::left:
      return Standing::Reason::left;
    case TransferError::Kind::ended:
      return Standing::Reason::ended;
    case TransferError::Kind::closed:
      break;
  }
  return Standing::Reason::closed;
}

}  // namespace

Channel::Channel(std::shared_ptr<Engine> engine, std::chrono::milliseconds timeout, std::string name,
                 ChannelParts parts)
    : engine_(std::move(engine)),
      timeout_(timeout),
      name_(std::move(name)),
      parts_(std::move(parts)),
      calls_(parts_.standstill && parts_.mail ? parts_.standstill->watch(name_, parts_.mail->job_ranks()) : nullptr) {
  if (calls_) calls_->set_owner(this);
}

Channel::~Channel() {
  if (calls_) calls_->set_owner(nullptr);
  if (parts_.mail) {
    const auto failure = std::make_exception_ptr(Error("The communicator was let go before anything came."));
    parts_.mail->end(failure, /*sends_too=*/false);
  }
  // Whoever leaves because of an exception does not wait for others: calls under way end at once.
  if (std::uncaught_exceptions() > 0) engine_->close();
}

Operation Channel::timed(const std::string& what, const CallOptions& options) const {
  const auto timeout = options.timeout.value_or(timeout_);
  if (timeout <= std::chrono::milliseconds::zero()) {
    throw UsageError(what + ": the timeout must be positive, not " + describe_duration(timeout) + ".");
  }
  return {.number = 0,
          .what = what,
          .name = options.name,
          .timeout = timeout,
          .where = options.where.known() ? options.where : CalledFrom::now()};
}

Operation Channel::next_operation(const std::string& what, const CallOptions& options, const std::string& text,
                                  std::uint64_t bytes) {
  auto operation = timed(what, options);
  operation.number = next_number_++;
  if (calls_) calls_->called(operation, Worker::runs_this_thread());
  if (parts_.recorder) {
    operation.entry = parts_.recorder->called({.text = text,
                                               .channel = name_,
                                               .operation = operation.number,
                                               .bytes = bytes,
                                               .group_size = engine_->size(),
                                               .where = operation.where});
  }
  return operation;
}

void Channel::write_down_start(const Operation& operation) noexcept {
  if (parts_.recorder) parts_.recorder->runs(operation.entry);
}

void Channel::write_down_end(const Operation& operation, flight::EntryState how) noexcept {
  if (parts_.recorder) parts_.recorder->ended(operation.entry, how);
}

/// A collective under way.
struct Channel::Call {
  Operation operation;
  Body body;
  std::vector<std::byte> message;  // the fingerprint and, behind it, the payload
  std::unique_ptr<PendingExchange> exchange;
};

std::size_t Channel::payload_bytes() const {
  const std::size_t cheap = engine_->cheap_exchange_bytes();
  return cheap > sizeof(Fingerprint) ? cheap - sizeof(Fingerprint) : 0;
}

std::shared_ptr<WorkState> Channel::call(const std::string& what, const std::string& arguments,
                                         const CallOptions& options, Body body, const CallData& data) {
  throw_if_poisoned();
  std::string text = what + "(" + arguments;
  if (!options.name.empty()) text += std::string(arguments.empty() ? "" : ", ") + "'" + options.name + "'";
  text += ")";
  const Fingerprint mine(text, data.length);
  const auto call = std::make_shared<Call>();
  call->body = std::move(body);
  const auto fingerprint = mine.bytes();
  call->message.assign(fingerprint.begin(), fingerprint.end());
  if (data.payload) call->message.insert(call->message.end(), data.payload->begin(), data.payload->end());

  const std::lock_guard lock(order_mutex_);
  call->operation = next_operation(what, options, text, data.payload ? data.payload->size() : data.length);
  const auto run = [this, call] {
    start(*call);
    complete(*call);
  };
  if (engine_->size() == 1) return run_now(run);
  const int looks = engine_->looks_before_sleep();
  if (!data.payload || looks == 0 || !worker_.idle()) return watched(worker_.submit(run));

  // Where the others come at about the same time, waking a thread would take many times as long as the call.
  const auto started = run_now([&] { start(*call); });
  if (!call->exchange) return started;
  for (int look = 0; look < looks; ++look) {
    if (call->exchange->ready()) return run_now([&] { complete(*call); });
    pause_briefly();
  }
  return watched(worker_.submit([this, call] { complete(*call); }));
}

void Channel::start(Call& call) {
  write_down_start(call.operation);
  guarded(call.operation, [&] { call.exchange = engine_->start_exchange(call.operation, call.message); });
}

void Channel::complete(Call& call) {
  guarded(call.operation, [&] {
    const auto blocks = call.exchange->finish();
    const std::size_t block = call.message.size();
    Answers answers;
    answers.by_rank.resize(static_cast<std::size_t>(engine_->size()));
    for (std::size_t rank = 0; rank < answers.by_rank.size(); ++rank) {
      std::memcpy(&answers.by_rank[rank], blocks.data() + rank * block, sizeof(Fingerprint));
      answers.payloads.push_back(blocks.data() + rank * block + sizeof(Fingerprint));
    }
    require_agreement(answers.by_rank, call.operation.number);
    call.body(call.operation, answers);
  });
  finished(call.operation);
}

std::shared_ptr<WorkState> Channel::submit(std::function<void()> task) {
  if (engine_->size() == 1) return run_now(task);
  // What it calls is called from where this is.
  return watched(worker_.submit([task = std::move(task), where = CalledFrom::now()] {
    const CalledFrom here(where);
    task();
  }));
}

std::shared_ptr<WorkState> Channel::watched(std::shared_ptr<WorkState> work) const {
  work->belongs_to(calls_);
  return work;
}

std::string Channel::next_child_name(const std::string& kind) {
  return name_ + "/" + std::to_string(children_++) + "-" + kind;
}

std::shared_ptr<Channel> Channel::shared_child(const std::string& name,
                                               const std::function<std::shared_ptr<Channel>()>& make) {
  const std::lock_guard lock(shared_mutex_);
  std::shared_ptr<Channel>& child = shared_children_[name];
  if (!child) child = make();
  return child;
}

void Channel::throw_if_poisoned() const {
  if (poisoned_) throw_earlier_failure();
}

void Channel::throw_earlier_failure() const {
  const std::lock_guard lock(failure_mutex_);
  if (!foretold_.empty()) throw Divergence(foretold_);
  throw PeerFailure("This communicator failed earlier and cannot be used any more: " + failure_, culprits_);
}

void Channel::fail(const Operation& operation, const TransferError& error) {
  std::unique_lock lock(failure_mutex_);
  if (poisoned_) {
    lock.unlock();
    throw_earlier_failure();
  }
  poisoned_ = true;
  Standing own{.reason = reason_of(error),
               .operation = operation.number,
               .timeout = error.waited().value_or(operation.timeout),
               .waiting_for = error.peers(),
               .where = operation.describe()};
  const bool late = own.gave_up();
  Verdict verdict;
  try {
    Inquiry inquiry(engine_->bulletin(), engine_->rank(), engine_->size(), std::move(own));
    inquiry.wait_until_posted();
    // Only now may the others see the connections end: they look at once for what was posted.
    engine_->close();
    verdict = inquiry.verdict();
  } catch (const std::exception& lookup_error) {
    engine_->close();
    verdict = {.culprits = error.peers(),
               .timed_out = late,
               .message = operation.describe() + ": no answer from " + describe_ranks(error.peers()) + " (" +
                          lookup_error.what() + ")"};
  }
  failure_ = verdict.message;
  culprits_ = verdict.culprits;
  const std::string foretold = foretold_;
  lock.unlock();
  end_mail();
  if (!foretold.empty()) throw Divergence(foretold);
  if (verdict.timed_out) throw Timeout(failure_, culprits_);
  throw PeerFailure(failure_, culprits_);
}

void Channel::give_up(Standing own, const std::string& reason) noexcept {
  try {
    const std::lock_guard lock(failure_mutex_);
    if (poisoned_) return;
    poisoned_ = true;
    failure_ = reason;
    if (engine_->size() > 1) {
      Inquiry(engine_->bulletin(), engine_->rank(), engine_->size(), std::move(own)).wait_until_posted();
    }
  } catch (const std::exception&) {
    // Leaving word is a courtesy; closing is what the others notice.
  }
  end_mail();
  engine_->close();
}

void Channel::foretell(const std::string& why) noexcept {
  const std::lock_guard lock(failure_mutex_);
  if (!poisoned_) foretold_ = why;
}

void Channel::end() noexcept {
  give_up({.reason = Standing::Reason::abandoned,
           .operation = next_number_,
           .timeout = timeout_,
           .waiting_for = {},
           .where = "calls that were made on some ranks only"},
          foretold_);
}

void Channel::abandon(const Operation& operation) noexcept {
  write_down_end(operation, flight::EntryState::failed);
  give_up({.reason = Standing::Reason::abandoned,
           .operation = operation.number,
           .timeout = operation.timeout,
           .waiting_for = {},
           .where = operation.describe()},
          operation.describe() + " was started and not finished");
}

}  // namespace tutti::comm
