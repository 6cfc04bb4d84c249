// Reverb's rate limiter (rate_limiter.cc of Reverb 0.14, arithmetic only), read and changed under the control lock, so
// that a client's death takes no credit along.
//   inserts = rows reserved − uncounted;  deletes = inserts − live records
#pragma once

#include "sizes.h"

namespace shmrb {

inline int64_t counted_inserts(const View& view) {
  return reserved_rows(view) - order::peek(&view.control->limiter.uncounted);
}

inline bool limits_apply(const View& view) {
  const LimiterBlock& limiter = view.control->limiter;
  return view.has(kLimiter) && order::peek(&limiter.enabled) && !order::peek(&limiter.lifted);
}

enum class Admission { kRefused, kWithinLimits, kByOpening };

// An opening lets in what the limits could let in at another time, never more rows than they are apart.
// REQUIRES: the control lock is held.
inline bool is_open_for(const View& view, int64_t rows) {
  const LimiterBlock& limiter = view.control->limiter;
  auto opener = static_cast<uint32_t>(order::peek(&limiter.opened_by));
  if (opener == 0 || !view.liveness.alive(opener)) return false;
  return static_cast<double>(rows) * limiter.samples_per_insert <= limiter.max_diff - limiter.min_diff;
}

// REQUIRES: the control lock is held.
inline Admission may_insert(const View& view, int64_t rows) {
  if (!limits_apply(view)) return Admission::kWithinLimits;
  LimiterBlock& limiter = view.control->limiter;
  settle_holes(view, true);
  if (live_records(view) + rows <= limiter.min_size) return Admission::kWithinLimits;  // the warm-up is free
  double after = static_cast<double>(counted_inserts(view) + rows) * limiter.samples_per_insert;
  int64_t samples = order::peek(&limiter.samples);
  if (view.has(kConsumption)) samples -= view.consumption().pending();  // what is held keeps its slot
  if (after - static_cast<double>(samples) <= limiter.max_diff) return Admission::kWithinLimits;
  return is_open_for(view, rows) ? Admission::kByOpening : Admission::kRefused;
}

// An opening is for one call: whichever goes ahead shuts it, and who still has nothing to draw opens again. Open for
// longer, a consumer that stopped would switch the limits off.
// REQUIRES: the control lock is held.
inline void shut_inserts(const View& view, Admission admission) {
  if (!view.has(kLimiter)) return;
  LimiterBlock& limiter = view.control->limiter;
  if (order::peek(&limiter.opened_by) != 0) order::publish(&limiter.opened_by, uint64_t{0});
  if (admission == Admission::kByOpening) order::bump(&limiter.opened_times, uint64_t{1});
}

// For a consumer that has nothing to draw: there are too few records, or none is legal. Writers that wait for draws would
// wait for ever, so one insert may go ahead. Returns whose waking is owed.
inline uint64_t open_inserts(const View& view) {
  if (!limits_apply(view) || !view.acts()) return 0;
  LimiterBlock& limiter = view.control->limiter;
  auto opener = static_cast<uint32_t>(order::peek(&limiter.opened_by));
  if (opener != 0 && view.liveness.alive(opener)) return 0;
  order::publish(&limiter.opened_by, uint64_t{view.token});
  return ring_room(view);
}

// REQUIRES: the control lock is held.
inline bool may_sample(const View& view, int64_t records) {
  if (!limits_apply(view)) return true;
  LimiterBlock& limiter = view.control->limiter;
  settle_holes(view, true);
  if (live_records(view) < limiter.min_size) return false;
  double owed = static_cast<double>(counted_inserts(view)) * limiter.samples_per_insert;
  return owed - static_cast<double>(order::peek(&limiter.samples)) - static_cast<double>(records) >= limiter.min_diff;
}

// Too few records to draw any. Not for want of inserts: with max_diff near min_diff the call that would bring live over
// min_size may be refused, and the warm-up ends below it.
// REQUIRES: the control lock is held.
inline bool in_want(const View& view) { return live_records(view) < view.control->limiter.min_size; }

// Charges a draw before it is made; a draw that fails gives the charge back.
inline Outcome charge(const View& view, int64_t records, int64_t deadline_ns) {
  if (!limits_apply(view) || records == 0) return {};
  if (!view.acts()) return {kReadOnly, 0, kNothing, 0, 0};
  Held held(view, view.control->control_lock, deadline_ns);
  if (!held) return blocked_on(kControlLock, held.who());
  if (!may_sample(view, records)) return {kLimited, 0, kNothing, 0, in_want(view) ? open_inserts(view) : 0};
  if (!limits_apply(view)) return {};  // lifted while we waited for the lock
  order::bump(&view.control->limiter.samples, records);
  stopping::at(stopping::kCharged);
  return {kOk, records, kNothing, 0, 0};
}

// After the draw: a charge that bought nothing goes back. Returns whose waking is owed: a draw lowers the difference that
// writers wait for; what it gives back others may draw; one that found nothing legal opens the insert side.
inline uint64_t settle_charge(const View& view, int64_t charged, bool drawn, bool nothing_legal) {
  if (!view.has(kLimiter) || !view.writable) return 0;
  LimiterBlock& limiter = view.control->limiter;
  if (drawn) {
    if (order::peek(&limiter.opened_by) != 0) order::publish(&limiter.opened_by, uint64_t{0});
    return ring_room(view);
  }
  if (charged == 0) return nothing_legal ? open_inserts(view) : 0;
  order::bump(&limiter.samples, -charged);
  return ring_records(view) | (nothing_legal ? open_inserts(view) : 0);
}

}  // namespace shmrb
