// SPDX-License-Identifier: Apache-2.0

package main

import "context"

// user is one of the load's users: at most one connection, pages by a timetable.
type user struct {
	*world
	index   int
	page    int
	firstID int
	dialled int
	open    *open
	arrived []int // requests whose responses have just come and have set off none yet
}

// pageRun is how far a page has got.
type pageRun struct {
	objects []object
	ready   []readyObject
	left    int
}

type readyObject struct {
	index   int
	sinceNs int64
}

func newUser(w *world, index int) *user {
	return &user{world: w, index: index}
}

func (u *user) run() {
	me := &u.Users[u.index]
	for ; ; u.page++ {
		due := u.StartNs + me.PhaseNs + int64(u.page)*u.IntervalNs
		now := monotonicNs()
		last := u.page >= len(me.Pages) || due >= u.EndNs || now >= u.EndNs || u.stopped.Load()
		// A connection that would be too old by the next page goes now.
		if u.open != nil && (last || due >= u.open.retireNs) {
			u.close("")
		}
		if last {
			return
		}
		sleepUntil(due)
		if fault := u.runPage(me.Pages[u.page], due); fault != "" && u.open != nil {
			u.close(fault)
		}
		u.firstID += len(me.Pages[u.page])
	}
}

// runPage fetches one page from its root to its last object.
func (u *user) runPage(objects []object, dueNs int64) string {
	ready := dueNs
	if now := monotonicNs(); now-dueNs > 50e6 {
		ready = now // behind the timetable
	}
	run := &pageRun{objects: objects, ready: []readyObject{{0, ready}}, left: len(objects)}
	u.arrived = nil
	if u.open != nil && u.open.conn.Context().Err() != nil {
		if fault := faultOf(context.Cause(u.open.conn.Context()), "server_closed"); fault == "id_limit" {
			return fault
		}
		return "server_closed"
	}
	for run.left > 0 {
		if fault := u.send(run); fault != "" {
			return fault
		}
		if fault := u.receive(run); fault != "" {
			return fault
		}
	}
	return ""
}

// send sends what the page and the connection allow.
func (u *user) send(run *pageRun) string {
	if u.open != nil && monotonicNs() >= u.open.retireNs {
		if u.open.waiting > 0 {
			return ""
		}
		u.close("")
	}
	if u.open == nil {
		me := &u.Users[u.index]
		opened, fault := u.dial(me.Slot, me.AgesNs[u.dialled%len(me.AgesNs)])
		u.dialled++
		if fault != "" {
			return fault
		}
		u.open = opened
	}
	for u.open.waiting < u.Outstanding && len(run.ready) > 0 {
		next := run.ready[0]
		run.ready = run.ready[1:]
		wanted := run.objects[next.index]
		intended := next.sinceNs
		if intended < u.open.logged.ConnectedNs {
			intended = u.open.logged.ConnectedNs // a page's first request waits for its connection
		}
		r := response{
			Connection: u.open.number, Page: u.page, ID: u.firstID + next.index,
			Parent: u.trigger(wanted.Parent), IntendedNs: intended, Size: wanted.Size,
		}
		u.open.waiting++
		go u.fetch(u.open, next.index, r, wanted.ServiceUs)
	}
	return ""
}

// trigger gives the response that sets off a request for an object that object
// parent names: that one's if it has just come, else one that made room.
func (u *user) trigger(parent int) int {
	if len(u.arrived) == 0 {
		return -1
	}
	at := 0
	for i, id := range u.arrived {
		if parent >= 0 && id == u.firstID+parent {
			at = i
		}
	}
	id := u.arrived[at]
	u.arrived = append(u.arrived[:at], u.arrived[at+1:]...)
	return id
}

// receive waits for an answer and takes all that have come by then.
func (u *user) receive(run *pageRun) string {
	u.arrived = u.arrived[:0]
	next := <-u.open.arrivals
	for {
		if fault := u.take(run, next); fault != "" {
			return fault
		}
		select {
		case next = <-u.open.arrivals:
		default:
			return ""
		}
	}
}

func (u *user) take(run *pageRun, a arrival) string {
	u.open.waiting--
	if a.fault != "" {
		u.open.waiting++ // it is lost with the others
		return a.fault
	}
	u.arrived = append(u.arrived, a.response.ID)
	run.left--
	for i, o := range run.objects {
		if o.Parent == a.object {
			run.ready = append(run.ready, readyObject{i, a.response.LastNs})
		}
	}
	u.log.mutex.Lock()
	u.log.Responses = append(u.log.Responses, a.response)
	u.log.mutex.Unlock()
	return ""
}

func (u *user) close(fault string) {
	u.open.close(fault)
	u.open = nil
}
