; OpenMP's workers: PyTorch's own threads take part in a call while they still spin after an operator.
;
; OpenMP's workers watch for the next parallel region for milliseconds, and ours would share CPUs with them.  So a call that
; begins meanwhile is a parallel region of OpenMP: its workers claim chunks as ours do (thread_team.ll), and ours sleep on.  Its
; end waits for every worker, which the protocol of our team avoids; so OpenMP's are used only while they spin.
;
; A worker spins if its CPU clock goes on between two looks.  Each calling thread has workers of its own: their clocks are looked
; up once the team had to wait for a worker that was put aside.
;
;   field    of %pool
;   0        the calling thread
;   1        the CPU clock of its first worker
;   2        what the clock said last, in nanoseconds
;   3        start of the run of borrowed calls, in ticks; 0 if there is none
;   4        what the clock said when the run was over
;   5, 6     time of the last look, in ticks, and its answer: 1 to borrow
;   7        time of the last call before which there was time for an operator
;
; After a borrowed call the workers spin again.  So after a run of such calls, a shorter one if there was no time for an operator
; between them, calls are left to our team until a worker has spun for longer than OpenMP lets it: if no operator of PyTorch runs
; between calls, it falls asleep before.

%pool     = type { i64, i64, i64, i64, i64, i64, i64, i64 }
%timespec = type { i64, i64 }

@pools    = internal global [64 x %pool] zeroinitializer, align 128
@can_lend = internal global i32 1, align 4       ; 0 in a forked child, where OpenMP waits for threads that are not there

; Let OpenMP's workers take part in a call on `threads` threads that begins at the time `now`, if they spin.
define internal void @borrow_workers(i64 %threads, i64 %now) {
entry:
  %preemptions = load atomic i64, ptr @preemptions monotonic, align 8
  %is_hindered = icmp ne i64 %preemptions, 0
  br i1 %is_hindered, label %look, label %done

look:
  %can_lend = load atomic i32, ptr @can_lend monotonic, align 4
  %may_lend = icmp ne i32 %can_lend, 0
  br i1 %may_lend, label %find, label %done

find:
  %self = call i64 @pthread_self()
  %high = lshr i64 %self, 12
  %slot = and i64 %high, 63
  %pool = getelementptr [64 x %pool], ptr @pools, i64 0, i64 %slot
  %known = load i64, ptr %pool
  %is_known = icmp eq i64 %known, %self
  br i1 %is_known, label %ask, label %fits_unknown

fits_unknown:
  %fits_before = call i1 @fits(i64 %threads)
  br i1 %fits_before, label %learn, label %done

learn:
  call void @learn_workers(ptr %pool, i64 %self, i64 %threads, i64 %now)
  br label %done

ask:
  %last_end = load atomic i64, ptr @last_end monotonic, align 8
  %gap = sub i64 %now, %last_end
  %shortest = call i64 @parameter(i64 3)
  %is_gap = icmp ugt i64 %gap, %shortest
  br i1 %is_gap, label %note_gap, label %decide

note_gap:
  %gap_slot = getelementptr %pool, ptr %pool, i64 0, i32 7
  store i64 %now, ptr %gap_slot
  br label %decide

decide:
  %spins = call i1 @is_spinning(ptr %pool, i64 %now)
  br i1 %spins, label %fits_known, label %done

fits_known:
  %fits = call i1 @fits(i64 %threads)
  br i1 %fits, label %borrow, label %done

borrow:
  %threads32 = trunc i64 %threads to i32
  %workers = sub i32 %threads32, 1
  store atomic i32 %workers, ptr @borrowed seq_cst, align 4
  store atomic i32 1, ptr @borrowing seq_cst, align 4
  call void @GOMP_parallel_start(ptr @lend, ptr null, i32 %threads32)
  br label %done

done:
  ret void
}

; Never borrow again.
define internal void @stop_lending() {
  store atomic i32 0, ptr @can_lend monotonic, align 4
  ret void
}

; End the parallel region of OpenMP, if this call has begun one.
define internal void @return_workers(i1 %is_measured) {
entry:
  %borrowing = load atomic i32, ptr @borrowing monotonic, align 4
  %is_borrowing = icmp ne i32 %borrowing, 0
  %is_own = and i1 %is_measured, %is_borrowing
  br i1 %is_own, label %end, label %done

end:
  %start = call i64 @ticks()
  store atomic i32 0, ptr @borrowing seq_cst, align 4
  call void @GOMP_parallel_end()
  store atomic i32 0, ptr @borrowed seq_cst, align 4
  %now = call i64 @ticks()
  %waited = sub i64 %now, %start
  %preempted = call i64 @parameter(i64 4)
  %was_preempted = icmp ugt i64 %waited, %preempted
  br i1 %was_preempted, label %count, label %done

count:
  call void @count_preemption()
  br label %done

done:
  ret void
}

; Return True if a team of OpenMP that the calling thread begins has the workers that PyTorch uses.
define internal i1 @fits(i64 %threads) {
  %usual32 = call i32 @omp_get_max_threads()
  %usual = zext i32 %usual32 to i64
  %is_usual = icmp eq i64 %usual, %threads
  %inside = call i32 @omp_in_parallel()
  %is_outside = icmp eq i32 %inside, 0
  %fits = and i1 %is_usual, %is_outside
  ret i1 %fits
}

; Return True if the first worker spins, and it is not time to leave calls to our team.  An answer holds for a while.
define internal i1 @is_spinning(ptr %pool, i64 %now) {
entry:
  %last_slot = getelementptr %pool, ptr %pool, i64 0, i32 2
  %begin_slot = getelementptr %pool, ptr %pool, i64 0, i32 3
  %pause_slot = getelementptr %pool, ptr %pool, i64 0, i32 4
  %looked_slot = getelementptr %pool, ptr %pool, i64 0, i32 5
  %answer_slot = getelementptr %pool, ptr %pool, i64 0, i32 6
  %looked = load i64, ptr %looked_slot
  %since = sub i64 %now, %looked
  %interval = call i64 @parameter(i64 4)
  %is_fresh = icmp ult i64 %since, %interval
  br i1 %is_fresh, label %known, label %look

known:
  %answer = load i64, ptr %answer_slot
  %spun = icmp ne i64 %answer, 0
  ret i1 %spun

look:
  store i64 %now, ptr %looked_slot
  %last = load i64, ptr %last_slot
  %first = call i64 @cpu_time(ptr %pool)
  %has_run = icmp ne i64 %first, %last
  br i1 %has_run, label %again, label %sleeps

again:
  %second = call i64 @cpu_time(ptr %pool)
  store i64 %second, ptr %last_slot
  %runs = icmp ne i64 %second, %first
  br i1 %runs, label %spins, label %sleeps

sleeps:
  store i64 0, ptr %begin_slot
  store i64 0, ptr %pause_slot
  br label %refuse

refuse:
  store i64 0, ptr %answer_slot
  ret i1 false

spins:
  %known_begin = load i64, ptr %begin_slot
  %begins = icmp eq i64 %known_begin, 0
  %begin = select i1 %begins, i64 %now, i64 %known_begin
  store i64 %begin, ptr %begin_slot
  %age = sub i64 %now, %begin
  %longest = call i64 @parameter(i64 9)
  %is_young = icmp ult i64 %age, %longest
  %gap_slot = getelementptr %pool, ptr %pool, i64 0, i32 7
  %last_gap = load i64, ptr %gap_slot
  %since_gap = sub i64 %now, %last_gap
  %window = call i64 @parameter(i64 5)
  %is_near = icmp ult i64 %since_gap, %window
  %goes_on = and i1 %is_young, %is_near
  br i1 %goes_on, label %agree, label %pause

pause:
  %known_pause = load i64, ptr %pause_slot
  %pauses = icmp eq i64 %known_pause, 0
  %pause_begin = select i1 %pauses, i64 %second, i64 %known_pause
  store i64 %pause_begin, ptr %pause_slot
  %paused = sub i64 %second, %pause_begin
  %spin = call i64 @parameter(i64 8)
  %is_over = icmp ugt i64 %paused, %spin
  br i1 %is_over, label %renew, label %refuse

renew:
  store i64 %now, ptr %begin_slot
  store i64 %now, ptr %gap_slot
  store i64 0, ptr %pause_slot
  br label %agree

agree:
  store i64 1, ptr %answer_slot
  ret i1 true
}

; Return the CPU time of the pool's first worker in nanoseconds; forget the pool if it has gone.
define internal i64 @cpu_time(ptr %pool) {
entry:
  %time = alloca %timespec, align 8
  store %timespec zeroinitializer, ptr %time
  %clock_slot = getelementptr %pool, ptr %pool, i64 0, i32 1
  %clock64 = load i64, ptr %clock_slot
  %clock = trunc i64 %clock64 to i32
  %failed = call i32 @clock_gettime(i32 %clock, ptr %time)
  %is_there = icmp eq i32 %failed, 0
  br i1 %is_there, label %read, label %forget

forget:
  store i64 0, ptr %pool
  br label %read

read:
  %seconds = load i64, ptr %time
  %nanoseconds_slot = getelementptr %timespec, ptr %time, i64 0, i32 1
  %nanoseconds = load i64, ptr %nanoseconds_slot
  %whole = mul i64 %seconds, 1000000000
  %all = add i64 %whole, %nanoseconds
  ret i64 %all
}

; Look up the clock of the calling thread's first worker.  It spins now: no call is borrowed until it has slept, or for a while.
define internal void @learn_workers(ptr %pool, i64 %self, i64 %threads, i64 %now) {
  store %pool zeroinitializer, ptr %pool
  store i64 %self, ptr %pool
  %threads32 = trunc i64 %threads to i32
  call void @GOMP_parallel_start(ptr @tell_clock, ptr %pool, i32 %threads32)
  call void @GOMP_parallel_end()
  %longest = call i64 @parameter(i64 9)
  %begin = sub i64 %now, %longest
  %begin_slot = getelementptr %pool, ptr %pool, i64 0, i32 3
  store i64 %begin, ptr %begin_slot
  ret void
}

; Store the clock of the first worker in its pool.
define internal void @tell_clock(ptr %pool) {
entry:
  %clock = alloca i32, align 4
  %index = call i32 @omp_get_thread_num()
  %is_first = icmp eq i32 %index, 1
  br i1 %is_first, label %tell, label %done

tell:
  store i32 0, ptr %clock
  %self = call i64 @pthread_self()
  %failed = call i32 @pthread_getcpuclockid(i64 %self, ptr %clock)
  %id = load i32, ptr %clock
  %wide = sext i32 %id to i64
  %clock_slot = getelementptr %pool, ptr %pool, i64 0, i32 1
  store i64 %wide, ptr %clock_slot
  br label %done

done:
  ret void
}

; Work of one of OpenMP's workers in a borrowed call: run chunks until the call ends, or no region comes for a window.
define internal void @lend(ptr %unused) {
entry:
  %claimer = alloca %claimer, align 8
  %index32 = call i32 @omp_get_thread_num()
  %index = sext i32 %index32 to i64
  %longest = call i64 @parameter(i64 5)
  br label %wait

wait:
  %seen = phi i64 [ 0, %entry ], [ %state, %take_part ]
  %start = call i64 @ticks()
  br label %spin

spin:
  %borrowing = load atomic i32, ptr @borrowing monotonic, align 4
  %is_over = icmp eq i32 %borrowing, 0
  br i1 %is_over, label %leave, label %watch

watch:
  %state = load atomic i64, ptr @region acquire, align 8
  %published = icmp ne i64 %state, %seen
  br i1 %published, label %take_part, label %again

again:
  call void @relax()
  %now = call i64 @ticks()
  %spun = sub i64 %now, %start
  %give_up = icmp ugt i64 %spun, %longest
  br i1 %give_up, label %leave, label %spin

take_part:
  call void @run_chunks(i64 %state, i64 %index, ptr %claimer)
  br label %wait

leave:
  %before = atomicrmw sub ptr @borrowed, i32 1 seq_cst
  ret void
}

declare i64 @pthread_self()
declare i32 @pthread_getcpuclockid(i64, ptr)
declare i32 @clock_gettime(i32, ptr)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_max_threads()
declare i32 @omp_in_parallel()
declare void @GOMP_parallel_start(ptr, ptr, i32)
declare void @GOMP_parallel_end()
