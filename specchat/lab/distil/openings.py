"""First words of requests. Left alone, a target opens its own user turns much alike; a given word spreads them."""

from __future__ import annotations

OPENINGS = tuple(
    """Write|Write a|Write a function|Write a Python|Write a short story|Write a poem|Write an email
Write a SQL query|Write a paragraph|Write a program|Create|Create a list of|Create a function|Generate|Give me
Give an example|Explain|Explain how|Explain the|Explain why|Can you explain|Describe|Describe the|Compare|Define
How|How do|How do I|How can I|How does|How many|How to|What|What is|What is the|What are|What are the|What's|Why
Why is|Why do|When|Where|Who|Which|Is|Is it|Are|Can|Can you|Could you|Could you please|Do|Does|Should I|If
Summarize|Summarize the following|Summarize the following text:|Summarize this article:|Rewrite
Rewrite the following|Rewrite this sentence|Make this more|Edit|Correct|Fix|Improve|Paraphrase|Shorten|Extract
Classify|Identify|List|List the|List three|List five|List 10|Name|Name three|Suggest|Recommend|Tell me
Tell me a story|Tell me about|Help|Help me|I need|I want|I want to|I'm|I am|I have|I have a|I'm trying|I'd like
My|We|The|A|In|In what|There are|Let's|Hi|Hello|Hey|Please|You are|Imagine|Given|Given the|Given a|Consider
Translate|Translate the following|Translate to French:|Translate to Spanish:|Translate this sentence into German
Convert|Calculate|Solve|Solve the equation|Find|Find the|Determine|Compute|A train|If a|Sarah|Tom|John|def |import
class |```python|function |SELECT |#include|Debug|Debug this|What does this code|Implement|Implement a|In Python
Using Python|In JavaScript|Design|Develop|Plan|Plan a|Outline|Brainstorm|Discuss|Analyze|Analyse|Provide
Provide a|Based on|Read|Read the following|Text:|Question:|Article:|Dear|Subject:|Once upon a time|Add|Remove
Sort|Count|Choose|Pick|Complete|Continue|Finish|Fill in|Answer|Turn|Change|Replace|Act as|Pretend|Compose|Draft
Craft""".replace("\n", "|").split("|")
)

_ASKED = """Summarize the following text in a few sentences.|Summarize the text below.|Give a short summary of this article.
Summarize this paragraph in one sentence.|What are the key points of this text?|Write a brief summary of this report.
Summarize this email and say what is asked for.|Summarize this news story.|Rewrite this text in simpler words.
List the most important facts of this passage.|What is this text about?|Summarize this story for a child.
What should a reader take away from this?|Summarize the advice given here.""".replace("\n", "|").split("|")
_BEGUN = (
    "The",
    "In",
    "A",
    "When",
    "It",
    "Last week",
    "Many people",
    "Dear",
    "She",
    "This",
    "On Monday",
    "We",
)

PASSAGES = tuple(f"{asked}\n\n{begun}" for asked in _ASKED for begun in _BEGUN)
"""A text that is pasted behind a request, and its first word: the target writes the rest. Left to single words it
hardly ever writes a request that brings a text along, and a draft that has not seen any is poor at summaries."""
