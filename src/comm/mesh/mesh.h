#pragma once
// The connections of a process to other ranks of its job, which all its channels share. A channel is a number in the
// tags of messages: it costs no connection, no thread and no descriptor. Two ranks connect when they first talk.
//
// Gloo cannot cancel. What a channel that has failed has under way stays under way, with its memory, until the mesh
// ends; its waits are ended (waits.h), and the connections go on for other channels. A rank that lets go of a channel
// says so, by a word to each rank that it has talked to there: who waits for it in that channel waits in vain.
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/meeting/pulse.h"
#include "comm/mesh/connections.h"
#include "comm/mesh/first_words.h"
#include "comm/mesh/labels.h"
#include "comm/mesh/waits.h"

namespace tutti::comm {

class MeshChannel;

/// One for a process and connect. Thread safe.
class Mesh : public std::enable_shared_from_this<Mesh> {
 public:
  /// How connections are made when they are first needed; it may throw.
  using Connect = std::function<std::unique_ptr<Connections>()>;

  /// `rank` of `size` in the job. `pulse` is null where there is one machine.
  Mesh(Connect connect, int rank, int size, JobSecretPtr secret, std::shared_ptr<Pulse> pulse);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  /// A new channel; the connections are made where there are none yet. Throws what that throws, and Error where a
  /// process has too many channels.
  std::shared_ptr<MeshChannel> open();

  /// See FirstWords.
  std::string with_challenge(const std::string& text) const;
  std::vector<std::string> without_challenges(const std::vector<std::string>& all, const std::vector<int>& ranks);
  bool asks_for_proof() const { return words_.are_needed(); }

  /// Connects to ranks of the job that this one has not talked to, and asks for their proof where the job has a secret.
  /// They must do the same. Throws TransferError, which names ranks of the job, and what Connections::post() throws.
  void meet(const std::vector<int>& peers, Deadline deadline);

 private:
  friend class MeshChannel;
  struct Peer;

  void connect_to(int peer);
  void prove(int peer, Deadline deadline);
  void await_word(Peer& peer);
  void read_words();
  void say_over(int peer, const Label& label) noexcept;
  void forget_words_that_were_heard();
  void wait(UnderWay& message, int peer, Deadline deadline);

  const Connect connect_;
  const int rank_;
  const std::shared_ptr<Pulse> pulse_;

  std::mutex connecting_;  // held while the connections are made
  // In this order: messages go before what carries them.
  std::unique_ptr<Connections> connections_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank

  mutable std::mutex mutex_;  // of what follows, but for waits_ and alarm_, and of what channels say that it holds
  std::vector<std::unique_ptr<UnderWay>> buried_;
  std::vector<std::unique_ptr<UnderWay>> words_said_;
  FirstWords words_;
  Labels labels_;
  std::map<int, MeshChannel*> channels_;  // by number
  std::vector<Peer*> met_;

  std::unique_ptr<Waits> waits_;
  std::shared_ptr<void> alarm_;
};

/// A group of ranks that send one another messages. Thread safe.
class MeshChannel : public std::enable_shared_from_this<MeshChannel> {
 public:
  MeshChannel(std::shared_ptr<Mesh> mesh, const Label& label);
  /// Says that it is over.
  ~MeshChannel();
  MeshChannel(const MeshChannel&) = delete;
  MeshChannel& operator=(const MeshChannel&) = delete;

  /// What others have to know to send to this rank.
  std::string introduction() const;
  /// What all members said, this rank among them. Before the first message. Throws PeerFailure for what is none.
  void introduce(GroupPulse pulse, const std::vector<std::string>& introductions);

  /// `member` by its rank in the group. Throws TransferError.
  std::unique_ptr<Transfer> post(bool send, int member, Tag tag, const Block& block);

  /// Ends all waits, here and on the other ranks.
  void close() noexcept;

 private:
  friend class Mesh;
  class MeshTransfer;

  void wait(UnderWay& message, int member, std::uint64_t operation, Deadline deadline);
  std::optional<TransferError> why_to_end(int member, Deadline deadline, Deadline now) const;
  void say_who_is_awaited(int member, const std::string& what, std::chrono::seconds waited) const;
  void bury(std::unique_ptr<UnderWay> message) noexcept;
  void say_over() noexcept;

  const std::shared_ptr<Mesh> mesh_;
  const Label label_;
  GroupPulse pulse_{nullptr, {}};
  std::vector<Label> labels_;  // by member

  // Under the mesh's lock.
  bool closed_ = false;
  bool said_over_ = false;
  bool is_clean_ = true;     // nothing of it is under way
  std::set<int> talked_to_;  // ranks of the job
  std::set<int> left_;       // of these
  std::vector<int> late_;    // members whom a wait has given up at its deadline
};

}  // namespace tutti::comm
